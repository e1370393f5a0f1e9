"""Prints what scripts/build-cost.sh measured, as tables for the specification."""

import json
import os
import pathlib
import sys

WORK = pathlib.Path(sys.argv[1])
ROWS = int(os.environ["ROWS"])


class Build:
    """One build: CPU seconds, functions and bytes by crate."""

    def __init__(self, name):
        self.cpu_s = {}
        for line in (WORK / f"{name}.rustc").read_text().splitlines():
            words = line.split()
            # A call that only asks for the version has no name.
            if len(words) == 3:
                crate = words[0].replace("-", "_")
                self.cpu_s[crate] = self.cpu_s.get(crate, 0) + float(words[1]) + float(words[2])
        self.wall_s, user_s, system_s = map(float, (WORK / f"{name}.total").read_text().split())
        self.total_s = user_s + system_s
        self.code = {}
        for line in (WORK / f"{name}.code").read_text().splitlines():
            crate, functions, size = line.split()
            before = self.code.get(crate, (0, 0))
            self.code[crate] = (before[0] + int(functions), before[1] + int(size))
        packages = json.loads((WORK / f"{name}.metadata").read_text())["packages"]
        ours = {package["name"].replace("-", "_") for package in packages}
        self.ours = {crate: seconds for crate, seconds in self.cpu_s.items() if crate in ours}
        self.binary_bytes = int((WORK / f"{name}.bytes").read_text())

    def summary(self):
        ours_s = sum(self.ours.values())
        compiled_s = sum(self.cpu_s.values())
        functions = sum(self.code.get(crate, (0, 0))[0] for crate in self.ours)
        size = sum(self.code.get(crate, (0, 0))[1] for crate in self.ours)
        return {
            "wall, s": self.wall_s,
            "CPU in total, s": self.total_s,
            "CPU, our crates, s": ours_s,
            "CPU, other crates, s": compiled_s - ours_s,
            "CPU, C code, build scripts and the guest, s": self.total_s - compiled_s,
            "functions, our libraries": functions,
            "code of our libraries, MB": size / 1e6,
            "program, MB": self.binary_bytes / 1e6,
        }


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def one(build):
    print("| | |\n|---|---|")
    for what, value in build.summary().items():
        print(f"| {what} | {number(value)} |")
    print("\n| crate | CPU s | functions | code, KB |\n|---|---|---|---|")
    largest = sorted(build.cpu_s.items(), key=lambda pair: -pair[1])
    shown = [pair for pair in largest if pair[0] in build.ours]
    shown += [pair for pair in largest[:ROWS] if pair[0] not in build.ours]
    for crate, seconds in sorted(shown, key=lambda pair: -pair[1]):
        functions, size = build.code.get(crate, (0, 0))
        name = f"`{crate}`" if crate in build.ours else crate
        print(f"| {name} | {seconds:.1f} | {functions:,} | {size / 1e3:,.0f} |")


def ratios(old, new):
    print("\n| | before | now | ratio |\n|---|---|---|---|")
    after = new.summary()
    for what, before in old.summary().items():
        ratio = after[what] / before if before else float("nan")
        print(f"| {what} | {number(before)} | {number(after[what])} | {ratio:.2f} |")


builds = [Build(name) for name in sys.argv[2:]]
one(builds[-1])
if len(builds) == 2:
    ratios(*builds)
