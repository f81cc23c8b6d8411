"""A job's own output: the first failing rank, the known texts, and nothing invented."""

from pathlib import Path

import pytest

from fleet.faults.evidence import Evidence, FaultClass, Kind, Source
from fleet.faults.job_log import parse_job_log
from fleet.faults.tables import load_tables
from tests.faults.making import NOW, judge, log, traceback

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"


def codes(*lines: str) -> list[str]:
    return [e.code or "" for e in log(*lines)]


def one(*lines: str) -> Evidence:
    (e,) = log(*lines)
    return e


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("KeyError: 'x'", "python_deterministic"),
        ("AssertionError", "python_deterministic"),
        ("json.decoder.JSONDecodeError: Expecting value", "python_deterministic"),
        ("ModuleNotFoundError: No module named 'x'", "import_error"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "shape_mismatch"),
        ("RuntimeError: boom", "python_exception"),
        ("mycode.errors.OddError: boom", "python_exception"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "file_not_found"),
        ("TimeoutError", "os_error"),
        ("MemoryError", "host_memory"),
        ("torch.distributed.DistBackendError: NCCL error in: x", "dist_backend"),
        ("KeyboardInterrupt", "interrupted"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "child_failed"),
        (ECC, "cuda_ecc"),
    ],
)
def test_the_last_line_of_a_traceback_decides(error: str, code: str) -> None:
    e = one(*traceback(error, rank=3))
    assert (e.code, e.rank, e.kind, e.source) == (code, 3, Kind.LOG_TEXT, Source.JOB)
    assert e.detail.startswith(error.strip())
    assert "train.py:12" in e.detail


def test_what_a_frame_quotes_of_the_program_is_no_evidence() -> None:
    lines = list(traceback("KeyError: 'x'", rank=3))
    quoted = [*lines[:-1], '3:     raise RuntimeError(f"loss is NaN at step {step}")', lines[-1]]
    assert codes(*quoted) == ["python_deterministic"]
    assert one(*quoted[:-1], "3: RuntimeError: loss is NaN at step 7").detail.startswith("RuntimeError: loss is NaN")


def test_an_exception_named_outside_a_traceback_is_only_a_word() -> None:
    assert codes("KeyError: 'x'", "retrying after ValueError: bad", "RuntimeError: boom") == []


def test_the_first_failing_rank_is_named_when_ranks_interleave() -> None:
    early, late = traceback("KeyError: 'a'", rank=77), traceback("KeyError: 'b'", rank=3)
    mixed = [line for pair in zip(early, late, strict=True) for line in pair]
    e = one("0: step 41 loss 2.0", *mixed)
    assert (e.rank, e.count) == (77, 2)
    assert "KeyError: 'a'" in e.detail
    assert "last step seen 41" in e.detail


def test_of_a_chain_the_last_exception_counts() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'a'", ""]
    lines += ["During handling of the above exception, another exception occurred:", ""]
    lines += ["Traceback (most recent call last):", '  File "b.py", line 2, in g', "ImportError: no"]
    assert codes(*lines) == ["python_deterministic", "import_error"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "[rank3]:[E1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(",
            "nccl_watchdog_timeout",
        ),
        ("ncclRemoteError: A call failed possibly due to a network error or a remote process exited", "nccl_remote"),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "nccl_system"),
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "nccl_invalid_usage"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda_device_assert"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_illegal_access"),
        ("RuntimeError: CUDA error: some new thing", "cuda_other"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "cuda_fabric_not_ready",
        ),
        ("Failed to initialize NVML: Unknown Error", "nvml_container"),
        ("Killed", "bare_killed"),
        ("/job/run.sh: line 5:  4711 Killed                  python train.py", "bare_killed"),
        ("srun: error: alpha2: task 3: Killed", "bare_killed"),
        ("loss spike detected, skipping the batch", "loss_jump"),
        (
            "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that",
            "dataloader_shm",
        ),
        ("OSError: [Errno 28] No space left on device", "no_space"),
        ("slurmstepd: error: Detected 1959 oom_kill events in StepId=5002.batch. Some of the", "slurm_oom"),
        (
            "slurmstepd: error: *** JOB 7 ON a CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
            "slurm_time_limit",
        ),
        (
            "slurmstepd: error: *** JOB 7 ON a CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***",
            "slurm_preemption",
        ),
        (
            "slurmstepd: error: *** JOB 7 ON a CANCELLED AT 2026 DUE TO NODE FAILURE, SEE SLURMCTLD LOG",
            "slurm_node_failure",
        ),
        ("slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-01-02T03:04:05 ***", "slurm_cancelled"),
        ("rank 1: refusing to write: generation 3 is newer than 2", "generation_refused"),
        ("The following zero checkpoints paths are missing: ['x']", "bad_checkpoint"),
        (
            "found iteration 15 in the metadata while max iteration across the ranks is 4160813071, replacing",
            "bad_checkpoint",
        ),
        ("RuntimeError: [1] is setting up NCCL communicator: Connection reset by peer", "connection_lost"),
        ("train.py: error: unrecognized arguments: --lrr", "argparse"),
        ("step 12 loss nan", "loss_nan"),
        ("NET/IB : Got async event : port error", "ib_port_error"),
        ("NET/IB : Got fatal event IBV_EVENT_DEVICE_FATAL", "ib_device_fatal"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated", "cuda_launch_timeout"),
        ("CUDA driver version is insufficient for CUDA runtime version", "cuda_driver_old"),
        ("Failed to initialize NVML: Driver/library version mismatch", "nvml_mismatch"),
        ("RuntimeError: No CUDA GPUs are available", "cuda_no_device"),
        ("Unable to determine the device handle: GPU is lost", "nvml_gpu_lost"),
        (
            "NCCL WARN NET/IB : Got completion from peer 192.0.2.36<44206> with status=IBV_WC_REM_ACCESS_ERR(10) x",
            "ib_remote_error",
        ),
        ("NCCL WARN NET/IB : Got completion from peer 192.0.2.36<44206> with status=4 opcode=1", "ib_completion"),
        ("[rank3]: NCCL communicator was aborted on rank 3.", "nccl_aborted"),
        ("failure detected by watchdog at work sequence id: 7", "nccl_watchdog_abort"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "nccl_unhandled_cuda"),
        ("ncclInternalError: Internal check failed.", "nccl_internal"),
        ("torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /worker/group", "store_timeout"),
        ("RuntimeError: DataLoader timed out after 120 seconds", "dataloader_timeout"),
        ("RuntimeError: DataLoader worker (pid(s) 99) exited unexpectedly", "dataloader_killed"),
        ("srun: error: Node failure on alpha2", "srun_node_failure"),
        ("OSError: [Errno 122] Disk quota exceeded", "quota"),
        ("OSError: [Errno 116] Stale file handle", "stale_handle"),
        ("step 12 loss 2.0 grad_norm: nan", "grad_nan"),
        ("W1130 Sending process 4711 closing signal SIGTERM", "agent_sigterm"),
    ],
)
def test_known_texts_are_found_on_any_line(line: str, code: str) -> None:
    assert codes("step 1 loss 2.0", f"3: {line}", "bye") == [code]


@pytest.mark.parametrize(
    "line",
    [
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "step 12 loss 2.31 (inference speed 3)",
        "saved checkpoint 200 in 2.0 s",
        "killed time by waiting for the store",
    ],
)
def test_advice_and_progress_are_no_evidence(line: str) -> None:
    assert codes(line) == []


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("", "torch_oom"),
        (" of which 1.1 GiB is free. Process 123 has 40.00 GiB memory in use.", "torch_oom_other_process"),
        (" of which 1.1 GiB is free. Process 123 has 300.00 MiB memory in use.", "torch_oom"),
        (
            " of which 1.1 GiB is free. Including non-PyTorch memory, this process has 77.5 GiB memory in use.",
            "torch_oom",
        ),
        (
            " of which 1.1 GiB is free. Including non-PyTorch memory, this process has 30.00 GiB memory in use.",
            "torch_oom_other_process",
        ),
        (
            " 60.0 GiB is allocated by PyTorch, and 9.00 GiB is reserved by PyTorch but unallocated.",
            "torch_oom_fragmented",
        ),
        (
            " 70.0 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
            "torch_oom",
        ),
    ],
)
def test_an_out_of_memory_is_told_apart_by_its_sizes(rest: str, code: str) -> None:
    assert codes(*traceback(OOM + rest)) == [code]
    assert code in load_tables().texts


def test_of_infiniband_completions_the_first_status_counts_and_the_flood_is_one() -> None:
    head = "gpu-c{}:7:9 [0] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.36<44206> with "
    tail = "localGid ::ffff:198.51.100.21 remoteGids::ffff:198.51.100.182"
    first = head.format(11) + f"status=12 opcode=1 len=0 vendor err 129 (Send) {tail}"
    flood = head.format(36) + "status=5 opcode=32656 len=32659 vendor err 249 (Recv)"
    found = log(first, *[flood] * 400)
    assert [(e.code, e.count) for e in found] == [("ib_retry_exceeded", 1), ("ib_flush", 400)]


def test_a_rank_names_its_node_only_through_the_jobs_own_map() -> None:
    lines = traceback(ECC, rank=5)
    (known,) = parse_job_log(lines, cluster="alpha", job="j", seen_at=NOW, rank_nodes={5: "gpu-f13"})
    assert known.node == "gpu-f13"
    assert log(*lines)[0].node is None


def test_a_log_cannot_point_at_a_node_that_the_job_never_had() -> None:
    line = "victim:12:34 [0] NCCL WARN uncorrectable ECC error encountered"
    (foreign,) = parse_job_log([line], cluster="alpha", job="j", seen_at=NOW, rank_nodes={0: "alpha1"})
    (own,) = parse_job_log([line], cluster="alpha", job="j", seen_at=NOW, rank_nodes={0: "victim"})
    assert (foreign.node, own.node) == (None, "victim")


def test_junk_is_unreadable_and_a_quiet_log_is_empty() -> None:
    (e,) = parse_job_log([bytes(range(128, 256))] * 20, cluster="alpha", job="j", seen_at=NOW)
    assert (e.kind, e.source) == (Kind.UNREADABLE, Source.JOB)
    assert log() == []
    assert log("step 1 loss 2", "step 2 loss 1") == []


def test_text_bytes_and_lines_read_alike() -> None:
    text = "\n".join(traceback("KeyError: 'x'"))
    one_text = parse_job_log(text, cluster="alpha", job="j", seen_at=NOW)
    as_bytes = parse_job_log(text.encode(), cluster="alpha", job="j", seen_at=NOW)
    as_lines = parse_job_log(text.splitlines(), cluster="alpha", job="j", seen_at=NOW)
    assert one_text == as_bytes == as_lines
    assert len(one_text) == 1


SUMMARY = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_03:04:05
  host      : alpha3
  rank      : 9 (local_rank: 1)
  exitcode  : -15 (pid: 4712)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4712
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:04
  host      : alpha2
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
  traceback : {said}
============================================================"""


def test_the_root_cause_of_torchelastics_summary_is_told_with_rank_and_node() -> None:
    lines = SUMMARY.format(code=-9, said="Signal 9 (SIGKILL) received by PID 4711").split("\n")
    found = parse_job_log(lines, cluster="alpha", job="j", seen_at=NOW, rank_nodes={3: "alpha2", 9: "alpha3"})
    assert [(e.kind, e.code, e.rank, e.node) for e in found if e.kind is Kind.JOB_EXIT] == [
        (Kind.JOB_EXIT, "-9", 3, "alpha2")
    ]
    verdict = judge(*found)
    assert (verdict.fault, verdict.rule) == (FaultClass.UNKNOWN, "secondary_only")


def test_a_traceback_beats_the_exit_code_of_the_summary() -> None:
    lines = [
        *traceback("KeyError: 'x'", rank=3),
        *SUMMARY.format(code=1, said="To enable traceback see x").split("\n"),
    ]
    verdict = judge(*log(*lines))
    assert (verdict.fault, verdict.rule) == (FaultClass.USER, "text:python_deterministic")


def test_a_summary_that_is_cut_off_tells_no_exit() -> None:
    cut = SUMMARY.split("  exitcode  : {code}")[0]
    assert [e.kind for e in log(*cut.split("\n")) if e.kind is Kind.JOB_EXIT] == []


def test_every_row_of_the_table_is_shown_by_a_line_of_these_tests() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    rows = {name for name in load_tables().texts if f'"{name}"' not in text}
    assert rows == set()


def losses(*values: float) -> list[str]:
    return [f"step {n} loss {value}" for n, value in enumerate(values)]


def test_a_loss_that_jumps_is_seen_by_its_numbers() -> None:
    calm = [2.5, 2.4, 2.45, 2.41, 2.4, 2.38, 2.39, 2.37, 2.36, 2.38, 2.35, 2.4]
    assert codes(*losses(*calm, 11.9)) == []
    jump = one(*losses(*calm, 40.25))
    assert (jump.code, jump.detail) == ("loss_jump", "step 12 loss 40.25, last step seen 12")
    assert one(*losses(*calm, 40.25, 41.0, 42.0)).count == 3
    assert codes(*losses(*calm, 40.25, 2.4)) == []


def test_a_loss_that_begins_high_does_not_jump() -> None:
    assert codes(*losses(900.0, 80.0, 11.0, 9.0, 7.5, 6.0, 5.5, 5.2, 5.0, 4.9, 4.8, 4.7, 4.6)) == []


def test_the_one_gpu_with_less_memory_is_told() -> None:
    small = OOM.replace("79.1", "39.5")
    assert codes(*traceback(OOM, rank=0), *traceback(small, rank=5)) == ["torch_oom", "torch_oom_small_gpu"]
    (_, told) = log(*traceback(OOM, rank=0), *traceback(small, rank=5))
    assert told.rank == 5
    assert codes(*traceback(OOM, rank=0), *traceback(OOM, rank=5)) == ["torch_oom"]


def test_a_missing_file_is_told_for_each_node_of_the_job_that_misses_it() -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"
    lines = [line for rank in (0, 1, 2) for line in traceback(error, rank=rank)]
    places = {0: "alpha1", 1: "alpha2", 2: "alpha2"}
    told = parse_job_log(lines, cluster="a", job="j", seen_at=NOW, rank_nodes=places, nodes=("alpha1", "alpha2"))
    assert [(e.node, e.count, e.nodes) for e in told] == [
        ("alpha1", 1, ("alpha1", "alpha2")),
        ("alpha2", 2, ("alpha1", "alpha2")),
    ]
    assert [e.node for e in parse_job_log(lines, cluster="a", job="j", seen_at=NOW)] == [None]


def test_each_failed_path_between_two_ports_is_told_once() -> None:
    line = (
        "alpha2:1:2 [0] p.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.36<44206> with status=12 "
        "opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:198.51.100.21 remoteGids::ffff:198.51.100.{}"
    )
    lines = [line.format(182), line.format(182), line.format(190)]
    told = parse_job_log(lines, cluster="a", job="j", seen_at=NOW, nodes=("alpha2",))
    assert [(e.code, e.node, e.count) for e in told] == [
        ("ib_retry_exceeded", "alpha2", 2),
        ("ib_retry_exceeded", "alpha2", 1),
    ]


def test_a_log_with_a_thousand_paths_stays_small() -> None:
    lines = [
        f"NET/IB : Got completion from peer x with status=12 o localGid ::{n:x} remoteGids::1" for n in range(1000)
    ]
    told = log(*lines)
    assert sum(e.count for e in told) == 1000
    assert len(told) <= 66
