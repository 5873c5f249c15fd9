#!/bin/bash
# Starts the node of this machine, or lets it go on from the last complete checkpoint. It can be started again after
# any failure. CHECKPOINTS is a directory that all machines share.
#
#   RINGWIDE_RANK=0 RINGWIDE_PEERS=peers.txt EXPERIMENT=my.yaml CHECKPOINTS=/shared/my examples/deploy/start_node.sh
set -euo pipefail
: "${RINGWIDE_RANK:?}" "${RINGWIDE_PEERS:?}" "${EXPERIMENT:?}" "${CHECKPOINTS:?}"

resume=()
if compgen -G "$CHECKPOINTS/step-?????????.pt" > /dev/null; then # the file that is written last
    resume=(--resume "$CHECKPOINTS")
fi
# exec: signals reach the node itself, and its exit code is that of this script.
exec "${PYTHON:-python3}" -m ringwide.node --config "$EXPERIMENT" --set "checkpoint.directory=$CHECKPOINTS" "${resume[@]}" "$@"
