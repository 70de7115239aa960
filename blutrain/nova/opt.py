"""Run passes by hand over a file of nova IR, through the driver that compilation uses:

    python -m blutrain.nova.opt step.mlir --passes=canonicalize,cse
    python -m blutrain.nova.opt step.mlir --target=cpu --dump=out/     # the whole pipeline of the target

Prints the resulting IR with the user's lines; `-` reads from standard input.
"""

from __future__ import annotations

import argparse
import sys

from mlir import ir
from mlir.ir import MLIRError  # pyright: ignore[reportAttributeAccessIssue]  (the stubs lack it)

from ..errors import NovaError
from . import pipeline
from .dialect import VerifyError, create_context, verify
from .passes.driver import Settings, run_passes


def main(arguments: list[str] | None = None) -> int:
    """The command: 0 on success, 1 after an error, which goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m blutrain.nova.opt", description="Run nova's passes over a file.")
    parser.add_argument("file", help="MLIR text, - for standard input")
    parser.add_argument(
        "--passes", help="comma-separated names of files in blutrain/nova/passes; default: all of the target"
    )
    parser.add_argument("--target", default="cpu", choices=sorted(pipeline.PIPELINES))
    parser.add_argument("--dump", metavar="DIR", help="write the IR after every pass that changes it")
    parser.add_argument("--timing", action="store_true", help="print milliseconds per pass to standard error")
    options = parser.parse_args(arguments)
    text = sys.stdin.read() if options.file == "-" else _read(options.file)
    names = tuple(options.passes.split(",")) if options.passes else pipeline.PIPELINES[options.target]
    try:
        with create_context():
            module = ir.Module.parse(text)
            verify(module)
            report = run_passes(module, names, _facts(), Settings(options.dump, True, options.target))
            print(module.operation.get_asm(enable_debug_info=True))
    except (NovaError, VerifyError, MLIRError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 1
    if options.timing:
        for name, milliseconds in report.milliseconds.items():
            print(f"{name:40} {milliseconds:8.2f} ms", file=sys.stderr)
    return 0


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _facts():
    from .target import host_cpu

    return host_cpu()


if __name__ == "__main__":
    sys.exit(main())
