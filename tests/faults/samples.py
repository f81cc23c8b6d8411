"""One true text of each kind of input: what the tests of recognition read and the fuzz tests spoil."""

import json

from tests.faults.making import UUID
from tests.faults.sources.dumps import dump, record, torch_pickle

FLIGHT = dump([record(1), record(2, "started", retired=True)])
XID_LINE = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SAMPLES: dict[str, bytes] = {
    "kernel_log": (
        f"[    5.000001] NVRM: GPU at PCI:0000:1b:00: {UUID}\n[  900.000002] {XID_LINE}\n"
        "[  901.000003] mlx5_core 0000:1a:00.1 ens1: Link down\n"
    ).encode(),
    "job_log": (
        b"step 41 loss 2.0\n3: Traceback (most recent call last):\n"
        b"3:   File \"/home/user/train.py\", line 12, in step\n3:     work()\n3: KeyError: 'x'\n"
    ),
    "elastic_error": json.dumps(
        {
            "message": {
                "message": "KeyError: 'x'",
                "extraInfo": {
                    "py_callstack": "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'\n",
                    "timestamp": "1759999940",
                },
            }
        }
    ).encode(),
    "flight_recorder": torch_pickle(FLIGHT),
    "dcgm_diag": json.dumps(
        {
            "DCGM Diagnostic": {
                "test_categories": [
                    {
                        "category": "Hardware",
                        "tests": [
                            {
                                "name": "memory",
                                "results": [
                                    {
                                        "entity_group": "GPU",
                                        "entity_id": 3,
                                        "status": "Fail",
                                        "warnings": [
                                            {
                                                "warning": "DBE",
                                                "error_id": 4,
                                                "error_category": 10,
                                                "error_severity": 2,
                                            }
                                        ],
                                    }
                                ],
                                "test_summary": {"status": "Fail"},
                            }
                        ],
                    }
                ]
            },
            "metadata": {"version": "4.6.0"},
        }
    ).encode(),
    "dcgm_metrics": (
        "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.\n"
        f'DCGM_FI_DEV_XID_ERRORS{{gpu="3",UUID="{UUID}",pci_bus_id="00000000:AB:00.0",Hostname="alpha2"}} 79\n'
        f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="3",UUID="{UUID}",Hostname="alpha2"}} 2\n'
    ).encode(),
    "nccl_tests": (
        b"# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor)\n"
        b"  8589934592 2147483648 float sum -1 31000.0 277.10 471.30 3 31050.0 276.65 470.80 0\n"
        b"# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 471.05\n"
    ),
    "slurm": (
        b"JobId=4711 JobName=train\n   JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0\n   NodeList=alpha2\n\n"
        b"NodeName=alpha2 Arch=x86_64\n   State=DOWN* Weight=1\n   Reason=Not responding [slurm@x]\n"
    ),
    "kubernetes": json.dumps(
        {
            "kind": "Pod",
            "metadata": {"namespace": "ml", "name": "train-0"},
            "spec": {"nodeName": "alpha2"},
            "status": {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            },
        }
    ).encode(),
    "node_problems": json.dumps(
        {"conditions": [{"type": "KernelDeadlock", "status": "True", "message": "x"}]}
    ).encode(),
    "nvsentinel": json.dumps(
        {
            "checkName": "SysLogsXIDError",
            "isFatal": True,
            "isHealthy": False,
            "errorCode": ["79"],
            "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:1b:00"}],
            "nodeName": "alpha2",
        }
    ).encode(),
    "evidence": json.dumps([{"kind": "xid", "code": "79", "gpu": "0000:ab:00"}]).encode(),
}
IN_JSON = tuple(kind for kind, raw in SAMPLES.items() if raw.startswith((b"{", b"[{")))
