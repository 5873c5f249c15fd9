"""Torch's own tests of what a backend is most likely to lack: ringwide passes all that gloo passes.

The whole suite is run by `make torch-suite`. Here are some of it, with three ranks: fewer skip those about groups.
"""

import pytest

from integrations.torch_suite import passed, run, shortfall

RANKS = 3
TESTS = (
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_group",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_coalesced_max_complex_unsupported",
    "test_all_reduce_sum",  # looks at what a profiler has seen, as other collectives do
    "test_barrier_timeout_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_ddp_logging_data_cpu",
    "test_destroy_full_group",
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_gather_checks",
    "test_get_future",
    "test_isend_torch_profiler",
    "test_monitored_barrier_failure_order",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_subgroup",
    "test_monitored_barrier_wait_all_ranks",
    "test_scatter_object_list",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_with_tag_torch_profiler",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


@pytest.mark.integrations
@pytest.mark.timeout(600)
def test_ringwide_passes_what_gloo_passes() -> None:
    pytest.importorskip("expecttest", reason="torch's tests need what `make integrations` installs")
    gloo, ours = (run(backend, RANKS, TESTS) for backend in ("gloo", "ringwide"))  # in turn: some measure time
    assert passed(gloo) == set(TESTS)  # else torch has renamed some, which are not compared any more
    assert shortfall(gloo, ours) == {}
