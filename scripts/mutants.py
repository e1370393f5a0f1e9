#!/usr/bin/env python3
"""Breaks the kernel in every small way that cargo-mutants knows, and asks whether a test notices.

    scripts/mutants.py                         every mutant; writes docs/reports/mutants.md
    scripts/mutants.py --file eviction.rs ...  only mutants of these files, without a report
    scripts/mutants.py --work DIR              keeps its copy of the tree and its target there, to look at

cargo-mutants compiles the kernel once for each of its two thousand mutants, which takes hours. This script takes the list
of mutants from it and compiles them all into one test program: each function has its mutated bodies beside its own, and
a variable of the environment chooses one. A run of every test tells which functions it reaches, so a mutant meets only
tests that reach it, and then the simulator. It takes about half an hour on two cores.
"""

import argparse
import bisect
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs/reports/mutants.md"
VERSION = "27.1.0"
# Flaws are bugs made on purpose, and the audit is an instrument of the tests: breaking them proves nothing.
EXCLUDED = ("**/flaw.rs", "**/flaws.rs", "**/audit.rs")
# How many worlds the simulator plays against a mutant that the kernel's own tests miss.
SEEDS = 40
# A test that takes longer than this runs after the others, alone.
SLOW_S = 0.3
MEMORY_BYTES = 4 << 30
HOOK = """//! Chooses the mutant that this process is, and notes which functions with mutants it reaches.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static CHOSEN: OnceLock<u32> = OnceLock::new();
static TRACE: OnceLock<Option<std::sync::Mutex<std::fs::File>>> = OnceLock::new();
static REACHED: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];

/// The number of the mutant, if it is one of this function.
pub fn chosen(function: u32) -> u32 {
    let chosen = *CHOSEN.get_or_init(|| {
        // The first failure is enough.
        if std::env::var_os("MUTANT").is_some() {
            std::panic::set_hook(Box::new(|_| std::process::exit(101)));
        }
        std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX)
    });
    if !REACHED[function as usize].swap(true, Ordering::Relaxed) {
        let file = TRACE.get_or_init(|| {
            let path = std::env::var_os("MUTANT_TRACE")?;
            Some(std::sync::Mutex::new(std::fs::File::create(path).ok()?))
        });
        if let Some(file) = file {
            use std::io::Write as _;
            let _ = writeln!(file.lock().unwrap(), "{function}");
        }
    }
    chosen
}
"""


def run(argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, **options)


def listed(files):
    """The mutants that cargo-mutants would make."""
    if run(["cargo", "mutants", "--version"], cwd=ROOT).returncode:
        print(f"installing cargo-mutants {VERSION} (once, takes minutes)", flush=True)
        subprocess.run(["cargo", "install", "--locked", "--quiet", "--debug", "cargo-mutants", "--version", VERSION], check=True)
    excluded = [word for each in EXCLUDED for word in ("--exclude", each)]
    chosen = [word for each in files for word in ("--file", f"**/{each}")]
    done = run(["cargo", "mutants", "--list", "--json", "--package", "kernel", *excluded, *chosen], cwd=ROOT)
    if done.returncode:
        sys.exit(f"mutants.py: cargo mutants --list: {done.stderr}")
    return json.loads(done.stdout)


class Text:
    """A source file, and where its lines begin."""

    def __init__(self, text):
        self.text, self.lines = text, [0]
        for match in re.finditer("\n", text):
            self.lines.append(match.end())

    def at(self, place):
        return self.lines[place["line"] - 1] + place["column"] - 1

    def cut(self, span):
        return self.at(span["start"]), self.at(span["end"])


def body_of(text, start, end):
    """Where the body of a function begins, its brace included."""
    depth, at, named = 0, start, False
    while at < end:
        match = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'|#\[|\bfn\b|->|.", re.S).match(text, at)
        token = match.group()
        if token == "fn":
            named = True
        elif token in ("(", "[", "#["):
            depth += 1
        elif token in (")", "]"):
            depth -= 1
        elif token == "{" and named and depth == 0:
            return at
        at = match.end()
    raise ValueError(text[start:end])


class Tree:
    """A copy of the repository whose kernel has all mutants in it."""

    def __init__(self, work, mutants):
        self.root, self.mutants = work / "tree", mutants
        self.unviable, self.alone, self.constant = set(), set(), set()
        if not self.root.exists():
            for name in run(["git", "ls-files", "-z"], cwd=ROOT).stdout.split("\0"):
                if name and (ROOT / name).is_file():
                    (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, self.root / name)
        self.environment = {**os.environ, "CARGO_TARGET_DIR": str(work / "target"), "RUSTFLAGS": "--cap-lints allow", "CARGO_INCREMENTAL": "1",
                            "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_OPT_LEVEL": "1"}
        self.sources = {name: Text((ROOT / name).read_text()) for name in {each["file"] for each in mutants}}
        self.kernel = [str(path.relative_to(ROOT)) for path in (ROOT / "crates/kernel/src").rglob("*.rs")]
        self.functions = {}
        for number, each in enumerate(mutants):
            function = each.get("function")
            key = (each["file"], json.dumps((function or each)["span"]))
            self.functions.setdefault(key, []).append(number)
        for (file, _), numbers in self.functions.items():
            function = mutants[numbers[0]].get("function")
            start, end = self.sources[file].cut(function["span"]) if function else (0, 0)
            # What a function returns without a name differs from body to body, and nested functions are inside others.
            if not function or "impl " in (function.get("return_type") or "") or self.inside(file, start, end):
                self.alone.update(numbers)

    def inside(self, file, start, end):
        for (other, span) in self.functions:
            if other == file:
                a, b = self.sources[file].cut(json.loads(span))
                if (a < start and end < b) or (start < a and b < end):
                    return True
        return False

    def name(self, number):
        return self.mutants[number]["function"]["function_name"] if self.mutants[number].get("function") else ""

    def mutated(self, number, start, end):
        """The text of a function with this mutant."""
        each = self.mutants[number]
        source = self.sources[each["file"]]
        a, b = source.cut(each["span"])
        replacement = re.sub(r"\s*/\* ~ changed by cargo-mutants ~ \*/", "", each["replacement"])
        return source.text[start:a] + replacement + source.text[b:end]

    def write(self):
        """Writes the kernel with all mutants; remembers which lines are whose."""
        self.owners = {}
        for name in self.kernel:
            text = (ROOT / name).read_text()
            if name in self.sources:
                text = self.woven(name, text)
            text = self.without_const(text)
            if name == "crates/kernel/src/lib.rs":
                text += "\n#[doc(hidden)]\npub mod mutant;\n"
            target = self.root / name
            if target.read_text() != text:
                target.write_text(text)
        (self.root / "crates/kernel/src/mutant.rs").write_text(HOOK)

    def without_const(self, text):
        """A function that asks which mutant it is cannot be computed by the compiler."""
        def plain(match):
            return match.group() if match.group(2) in self.constant else f"{match.group(1)}fn {match.group(2)}"
        return re.sub(r"((?:pub(?:\([a-z]+\))? )?)const fn (\w+)", plain, text)

    def woven(self, name, text):
        pieces, at, marks = [], 0, []
        mine = [(self.sources[name].cut(json.loads(span)), index, numbers) for index, ((file, span), numbers) in enumerate(self.functions.items()) if file == name]
        for (start, end), index, numbers in sorted(mine):
            chosen = [number for number in numbers if number not in self.unviable and number not in self.alone and self.short(number) not in self.constant]
            if not chosen:
                continue
            begin = body_of(text, start, end)
            pieces += [text[at:begin], f"{{ match crate::mutant::chosen({index}) {{\n"]
            for number in chosen:
                marks.append((sum(map(len, pieces)), number))
                pieces.append(f"{number} => {self.mutated(number, begin, end)}\n")
            marks.append((sum(map(len, pieces)), None))
            pieces += [f"_ => {text[begin:end]}\n}} }}"]
            at = end
        whole = "".join([*pieces, text[at:]])
        lines = Text(whole).lines
        self.owners[name] = [(bisect.bisect_right(lines, mark), number) for mark, number in marks]
        return whole

    def short(self, number):
        return self.name(number).rsplit("::", 1)[-1]

    def owner(self, file, line):
        found = None
        for begin, number in self.owners.get(file, []):
            if begin > line:
                break
            found = number
        return found

    def build(self):
        """Compiles until every mutant that is left does."""
        for _ in range(40):
            self.write()
            done = run(["cargo", "test", "--locked", "-p", "kernel", "--lib", "--no-run", "--message-format=json"], cwd=self.root, env=self.environment)
            messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode == 0:
                return next(each["executable"] for each in messages if each.get("executable"))
            errors = [each["message"] for each in messages if each.get("reason") == "compiler-message" and each["message"]["level"] == "error"]
            if not self.learned(errors):
                sys.exit("mutants.py: the kernel does not compile:\n" + "\n".join(each.get("rendered") or "" for each in errors[:5]) + done.stderr[-2000:])
        sys.exit("mutants.py: the kernel does not compile in forty attempts")

    def learned(self, errors):
        """Takes out what does not compile."""
        before = len(self.unviable), len(self.constant)
        for error in errors:
            called = re.search(r"cannot call non-const .*?`(?:.*::)?(\w+)(?:::<.*>)?`", error["message"])
            if called:
                self.constant.add(called.group(1))
                continue
            for span in error["spans"]:
                number = self.owner(span["file_name"], span["line_start"])
                if span["is_primary"] and number is not None:
                    self.unviable.add(number)
        return before != (len(self.unviable), len(self.constant))

    def build_sim(self):
        done = run(["cargo", "build", "--locked", "-p", "sim", "--message-format=json"], cwd=self.root, env=self.environment)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            sys.exit("mutants.py: the simulator does not compile:\n" + done.stderr[-2000:])
        return next(each["executable"] for each in messages if each.get("executable"))

    def build_one(self, number):
        """Compiles the kernel with one mutant in its plain form."""
        each = self.mutants[number]
        for name in self.kernel:
            text = (ROOT / name).read_text()
            if name == each["file"]:
                text = self.mutated(number, 0, len(text))
            if name == "crates/kernel/src/lib.rs":
                text += "\n#[doc(hidden)]\npub mod mutant;\n"
            if (self.root / name).read_text() != text:
                (self.root / name).write_text(text)
        done = run(["cargo", "test", "--locked", "-p", "kernel", "--lib", "--no-run", "--message-format=json"], cwd=self.root, env=self.environment)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return next((each["executable"] for each in messages if each.get("executable")), None) if done.returncode == 0 else None


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def attempt(argv, timeout_s, **environment):
    """`passed`, `failed` or `hung`."""
    try:
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout_s, preexec_fn=limit,
                              env={**os.environ, "RUST_BACKTRACE": "0", **environment})
    except subprocess.TimeoutExpired:
        return "hung"
    return "passed" if done.returncode == 0 else "failed"


class Tests:
    """The kernel's own tests: how long each takes, and which functions it reaches."""

    def __init__(self, program, work):
        self.program, self.seconds, self.reach = program, {}, collections.defaultdict(list)
        names = [line[:-6] for line in run([program, "--list"]).stdout.splitlines() if line.endswith(": test")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as crowd:
            list(crowd.map(lambda pair: self.trace(pair[1], work / f"trace-{pair[0]}"), enumerate(names)))

    def trace(self, name, path):
        began = time.monotonic()
        state = attempt([self.program, "--exact", name, "--test-threads", "1"], 120, MUTANT_TRACE=str(path))
        self.seconds[name] = time.monotonic() - began
        if state != "passed":
            sys.exit(f"mutants.py: {name} {state} without a mutant")
        for line in path.read_text().split() if path.exists() else []:
            self.reach[int(line)].append(name)
        path.unlink(missing_ok=True)

    def meet(self, program, names, number):
        """What the tests say of a mutant: first the quick ones, all in one process, then the slow ones."""
        quick = [name for name in names if self.seconds[name] < SLOW_S]
        slow = sorted(set(names) - set(quick), key=self.seconds.get)
        for group in [quick, *[[name] for name in slow]]:
            if group:
                patience_s = 5 + 5 * sum(self.seconds[name] for name in group)
                state = attempt([program, "--exact", *group, "--test-threads", "1"], patience_s, MUTANT=str(number))
                if state != "passed":
                    return {"failed": "caught", "hung": "timeout"}[state]
        return "missed"


def judged(tree, tests):
    """{number: caught, timeout, missed or unviable}."""
    of = {number: index for index, numbers in enumerate(tree.functions.values()) for number in numbers}
    fates = {number: "unviable" for number in tree.unviable}
    woven = [number for number in of if number not in tree.unviable and number not in tree.alone and tree.short(number) not in tree.constant]
    alone = [number for number in of if number not in fates and number not in woven]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as crowd:
        for number, fate in zip(woven, crowd.map(lambda number: tests.meet(tests.program, tests.reach[of[number]], number), woven)):
            fates[number] = fate
    print(f"kernel's tests: {collections.Counter(fates.values())} in {time.monotonic() - began:.0f} s; {len(alone)} must be compiled alone", flush=True)
    sim = tree.build_sim()
    missed = [number for number, fate in fates.items() if fate == "missed"]
    patience_s = time_of_worlds(sim)
    fates.update(simulated(sim, missed, patience_s))
    print(f"with the simulator: {collections.Counter(fates.values())} in {time.monotonic() - began:.0f} s", flush=True)
    every = list(tests.seconds)
    for number in alone:
        program = tree.build_one(number)
        fates[number] = tests.meet(program, every, number) if program else "unviable"
        if fates[number] == "missed":
            # The simulator has this mutant in it, whatever the environment says.
            fates.update(simulated(tree.build_sim(), [number], patience_s))
    return fates


def time_of_worlds(sim):
    """How long a mutant may take, by how long the kernel without one does."""
    began = time.monotonic()
    if attempt([sim, "--seeds", str(SEEDS)], 600) != "passed":
        sys.exit("mutants.py: the simulator finds something without a mutant")
    return 10 + 5 * (time.monotonic() - began)


def simulated(sim, numbers, patience_s):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as crowd:
        states = crowd.map(lambda number: attempt([sim, "--seeds", str(SEEDS)], patience_s, MUTANT=str(number)), numbers)
        return {number: {"failed": "caught", "hung": "timeout", "passed": "missed"}[state] for number, state in zip(numbers, states)}


def reasons():
    """{what a mutant is, without its place: why it may be missed}, as the last report says."""
    known = {}
    for line in REPORT.read_text().splitlines() if REPORT.exists() else []:
        match = re.match(r"- `([^:]+):\d+:\d+: (.*?)`: (.*)", line)
        if match:
            known[match.group(1), match.group(2)] = match.group(3)
    return known


def report(mutants, fates):
    counts = collections.Counter(fates.values())
    viable = counts["caught"] + counts["missed"] + counts["timeout"]
    if not viable:
        sys.exit("mutants.py: there was nothing to break")
    known = reasons()

    def lines(fate):
        found = []
        for number in sorted(number for number, each in fates.items() if each == fate):
            place, what = re.match(r"(\S+:\d+:\d+): (.*)", mutants[number]["name"]).groups()
            reason = known.get((place.split(":")[0], what))
            found.append(f"- `{place}: {what}`" + (f": {reason}" if reason else ""))
        return "\n".join(found) or "None."

    commit = run(["git", "describe", "--always", "--dirty", "--exclude", "*"], cwd=ROOT).stdout.strip()
    today = datetime.datetime.now(datetime.UTC).date()
    return f"""# Mutants of the kernel

Every small change that cargo-mutants {VERSION} lists for `crates/kernel`, against the kernel's own tests and then {SEEDS} worlds
of the simulator. `scripts/mutants.py` wrote this on {today}, at commit {commit}.

| caught | missed | timed out | unviable | caught of viable |
|---:|---:|---:|---:|---:|
| {counts["caught"]} | {counts["missed"]} | {counts["timeout"]} | {counts["unviable"]} | {100 * counts["caught"] / viable:.1f} % |

A mutant that times out loops where the original does not: tests notice, but it does not count as caught. One that does
not compile is unviable and does not count. The script keeps the reasons below when it writes the report again.

## Missed

{lines("missed")}

## Timed out

{lines("timeout")}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", action="append", default=[], help="only mutants of this file of the kernel")
    parser.add_argument("--work", type=pathlib.Path, help="where the copy of the tree is")
    options = parser.parse_args()
    made = None if options.work else tempfile.mkdtemp()
    work = options.work.resolve() if options.work else pathlib.Path(made)
    work.mkdir(parents=True, exist_ok=True)
    try:
        mutants = listed(options.file)
        tree = Tree(work, mutants)
        program = tree.build()
        print(f"{len(mutants)} mutants, {len(tree.unviable)} do not compile; functions that stay constant: {len(tree.constant)}", flush=True)
        tests = Tests(program, work)
        print(f"{len(tests.seconds)} tests, {sum(tests.seconds.values()):.0f} s", flush=True)
        text = report(mutants, judged(tree, tests))
        if options.file:
            print(text)
        else:
            REPORT.write_text(text)
            print(f"wrote {REPORT.relative_to(ROOT)}")
    finally:
        if made:
            shutil.rmtree(made)


if __name__ == "__main__":
    main()
