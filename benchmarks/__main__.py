"""``python -m benchmarks [TABLE ..]``: tables of ratios, measured on the first CUDA device."""

from __future__ import annotations

import sys

import torch

from benchmarks import fusions, gemm, grouped, rows, schedules, split
from benchmarks.measure import HEADER

TABLES = {
    "gemm": gemm.cases,
    "grouped": grouped.cases,
    "rows": rows.cases,
    "schedules": schedules.cases,
    "split": split.cases,
    "fusions": fusions.cases,
}


def main(names: list[str]) -> int:
    """Print the tables of these names, all of them by default."""
    unknown = set(names) - set(TABLES)
    if unknown:
        print(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in names or TABLES:
        print(f"\n{HEADER}")
        for case in TABLES[name]():
            print(case.row(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
