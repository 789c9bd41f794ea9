"""The parity and law tests as other machines would compute them: `make test-machines`.

Torch, MKL and oneDNN choose their kernels by the CPU, and environment variables make them choose as
an older one would. Each configuration below sets some, and before its tests run a small program says
what took effect: a variable that does not reach its library fails the configuration. What this CPU
lacks is skipped, with the reason.

WHOLE configurations run all of tests/parity and tests/laws, NUMERIC ones the tests in which kernels
and threads matter most. Every value of every variable is in at least one of them, and so is each pair
of a vector width and a number of threads; what `make test` ran (this CPU's own choice, one thread) is
not repeated. The last line says the minutes.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHOLE = ("tests/parity", "tests/laws")
NUMERIC = (
    "tests/parity/test_families.py",
    "tests/parity/test_golden.py",
    "tests/parity/test_probes.py",
    "tests/parity/test_tiles.py",
    "tests/parity/test_tolerances.py",
    "tests/laws/test_bfloat16.py",
)
HALF = ("tests/laws/test_bfloat16.py", "tests/parity/test_golden.py")  # oneDNN computes bfloat16

ATEN, THREADS = "ATEN_CPU_CAPABILITY", "ANCHORWATCH_TEST_THREADS"
MKL, MKL_WIDTH, ONEDNN = "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"
MATHS = "ONEDNN_DEFAULT_FPMATH_MODE"


@dataclass(frozen=True)
class Machine:
    """Variables, the tests that run under them, and the CPU flag and vendor they need."""

    variables: dict[str, str]
    tests: tuple[str, ...] = NUMERIC
    needs: str = ""
    vendor: str = ""


MACHINES = (
    Machine({ATEN: "default", MKL: "COMPATIBLE", THREADS: "1"}, WHOLE),
    Machine({ATEN: "avx2", THREADS: "1"}, WHOLE, "avx2"),
    Machine({ATEN: "avx2", THREADS: "2"}, NUMERIC, "avx2"),
    Machine({ATEN: "avx512", THREADS: "1"}, NUMERIC, "avx512f"),
    Machine({ATEN: "avx512", MKL: "COMPATIBLE", THREADS: "2"}, NUMERIC, "avx512f"),
    Machine({ATEN: "default", THREADS: "2"}),
    Machine({MKL: "AVX2", THREADS: "1"}, NUMERIC, "avx2", "GenuineIntel"),
    Machine({MKL: "AVX512", THREADS: "2"}, NUMERIC, "avx512f", "GenuineIntel"),
    Machine({MKL_WIDTH: "SSE4_2", THREADS: "1"}, NUMERIC, "sse4_2", "GenuineIntel"),
    Machine({ONEDNN: "SSE41", THREADS: "1"}, HALF),
    Machine({ONEDNN: "AVX2", THREADS: "2"}, HALF, "avx2"),
    Machine({ONEDNN: "AVX512_CORE", MATHS: "STRICT", THREADS: "1"}, HALF, "avx512f"),
)

SAYS = """
import conftest
import torch
torch.ones(64, 64) @ torch.ones(64, 64)
torch.nn.functional.conv2d(torch.ones(2, 16, 32, 32), torch.ones(16, 16, 3, 3))
print("ATEN", torch.backends.cpu.get_cpu_capability())
print("THREADS", torch.get_num_threads())
"""


@dataclass
class Effect:
    """What the libraries say they do, by the variable that asks for it."""

    values: dict[str, str] = field(default_factory=dict)
    says: str = ""

    def wrong(self, asked: dict[str, str]) -> list[str]:
        """What was asked for and did not take effect; fpmath has no effect to see in float32."""
        return [
            f"{name}={value} had no effect: {self.values.get(name, 'nothing')}"
            for name, value in asked.items()
            if name != MATHS and self.values.get(name) != value.lower()
        ]


ISA = {
    "sse41": "Intel SSE4.1",
    "avx2": "Intel AVX2",
    "avx512_core": "Intel AVX-512 with AVX512BW",
}


def effect_of(variables: dict[str, str]) -> Effect:
    """Ask the libraries themselves, in a process of their own."""
    loud = {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    told = subprocess.run(
        [sys.executable, "-c", SAYS],
        env=os.environ | variables | loud,
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    def first(pattern: str) -> str:
        match = re.search(pattern, told)
        return match[1] if match else ""

    isa = first(r"info,cpu,isa:(.*)")
    width = first(r"MKL_VERBOSE oneMKL.*?architecture (.*?) enabled processors")
    values = {
        ATEN: first(r"ATEN (\w+)").lower(),
        THREADS: first(r"THREADS (\d+)"),
        MKL: first(r"CNR:([\w,]+)").lower(),
        MKL_WIDTH: "sse4_2" if "SSE4.2" in width or "SSE4_2" in width else width.lower(),
        ONEDNN: next((name for name, text in ISA.items() if isa.startswith(text)), isa),
    }
    says = f"aten {values[ATEN]}, threads {values[THREADS]}, mkl {values[MKL]}, onednn {isa}"
    return Effect(values, says)


def cpu() -> tuple[str, set[str]]:
    """(vendor, flags) of this machine; nothing where the system does not say."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    vendor = re.search(r"vendor_id\s*: (\w+)", text)
    flags = re.search(r"flags\s*: (.*)", text)
    return vendor[1] if vendor else "", set(flags[1].split()) if flags else set()


def lacks(machine: Machine, own: str) -> str:
    """Why a configuration is not run here, or nothing; `own` is what torch chooses by itself."""
    vendor, flags = cpu()
    if machine.variables == {ATEN: own, THREADS: "1"}:
        return "this CPU's own choice, `make test` runs it"
    if machine.needs and machine.needs not in flags:
        return f"this CPU has no {machine.needs}"
    if machine.vendor and machine.vendor != vendor:
        return f"MKL obeys it on {machine.vendor} only, this is {vendor or 'unknown'}"
    return ""


def run_tests(machine: Machine, cores: int) -> tuple[int, str]:
    """(pytest's exit code, what it printed). Threads that have no core of their own wait for one
    another at every product, so a worker has as many cores as it has threads."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *machine.tests]
    workers = cores // int(machine.variables[THREADS])
    if workers > 1:
        command += ["-n", str(workers)]
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": machine.variables[THREADS]}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | machine.variables | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def counted(text: str, what: str) -> int:
    match = re.search(rf"(\d+) {what}", text.rsplit("\n", 3)[-2] if "\n" in text else text)
    return int(match[1]) if match else 0


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="cores to use (2)")
    cores, failed, began = parser.parse_args().n, 0, time.monotonic()
    own = effect_of({THREADS: "1"}).values[ATEN]
    for machine in MACHINES:
        label = " ".join(f"{name}={value}" for name, value in machine.variables.items())
        if reason := lacks(machine, own):
            tell(f"skipped  {label}: {reason}")
            continue
        effect = effect_of(machine.variables)
        if wrong := effect.wrong(machine.variables):
            failed += 1
            tell(f"FAILED   {label}: {'; '.join(wrong)}")
            continue
        start = time.monotonic()
        code, text = run_tests(machine, cores)
        failed += code != 0
        passes, fails = counted(text, "passed"), counted(text, "failed") + counted(text, "error")
        tell(
            f"{'passed' if code == 0 else 'FAILED'}   {label}: {passes} passed, {fails} failed,"
            f" {time.monotonic() - start:.0f} s ({effect.says})"
        )
        if code:
            tell(text)
    tell(f"{(time.monotonic() - began) / 60:.1f} minutes, {failed} configurations failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
