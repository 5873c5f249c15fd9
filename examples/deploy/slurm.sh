#!/bin/bash
#SBATCH --job-name ringwide
#SBATCH --nodes 2 --ntasks 8
#SBATCH --time 01:00:00
#SBATCH --signal TERM@120
# Two minutes before the time is over all nodes stop after the same step and write a checkpoint, if the experiment has any.
#
#   sbatch examples/deploy/slurm.sh my.yaml
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
export RINGWIDE_KEY_FILE="${RINGWIDE_KEY_FILE:-$HOME/ring.key}" # made by `ringwide keygen`
exec srun "${PYTHON:-python3}" -m ringwide.node --config "$1" --set "nodes=$SLURM_NTASKS"
