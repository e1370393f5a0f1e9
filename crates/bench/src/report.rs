//! The results, as a table for people and as JSON for scripts, and whether they keep the promises.

use serde::Serialize;
use serde_json::{Value, json};

use super::contender::Skipped;
use super::rates::{Footprint, LaunchRate, Throughput};
use super::samples::{Pace, Samples};
use super::server::network::{self, memory::PolicyMemory};
use super::server::{self, Load, containers, other_binary, processes, sessions};
use command::duration;
use command::output::{Output, Paint};

/// The baseline: a program without a sandbox.
pub(crate) const BARE: &str = "bare";
/// The same for a program of the host, which is linked dynamically.
pub(crate) const BARE_TRUE: &str = "bare true";

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) samples: Samples,
    pub(crate) rates: Vec<LaunchRate>,
    pub(crate) footprints: Vec<Footprint>,
    pub(crate) throughput: Option<Throughput>,
    pub(crate) load: Option<Load>,
    pub(crate) processes: Option<processes::Rates>,
    pub(crate) policy_memory: Option<PolicyMemory>,
    pub(crate) skipped: Vec<Skipped>,
    /// The machine.
    pub(crate) machine: Value,
    /// Memory limits are on v1, where they cost more.
    pub(crate) v1_limits: bool,
}

/// A promise and its measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Gate {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// The value must not be above this, or not below it if `at_least`.
    pub(crate) limit: f64,
    pub(crate) at_least: bool,
    pub(crate) met: bool,
}

impl Gate {
    pub(super) fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Self { name: name.into(), value, limit, at_least: false, met: value <= limit }
    }

    pub(super) fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Self { name: name.into(), value, limit, at_least: true, met: value >= limit }
    }
}

/// Names of times, and the highest ratio of each to a bare spawn.
const RATIOS: [(&str, f64); 6] = [
    ("exec", 1.05),
    ("launch, spare network", 1.8),
    ("launch, fresh network", 3.0),
    ("run", 3.0),
    ("freeze", 0.05),
    ("thaw", 0.05),
];

impl Report {
    /// The promises whose values were measured.
    pub(crate) fn gates(&self) -> Vec<Gate> {
        let mut gates = Vec::new();
        for pace in Pace::ALL {
            gates.extend(self.gates_of_times(pace));
        }
        for (network, limit) in [("shared", 1000.0), ("fresh", 300.0)] {
            let rates = self.rates.iter().filter(|rate| rate.network == network);
            let best = rates.map(|rate| rate.launches_per_s).reduce(f64::max);
            gates.extend(
                best.map(|best| {
                    Gate::at_least(format!("launches/s, {network} network"), best, limit)
                }),
            );
        }
        for found in &self.footprints {
            let (name, limit) = match (found.limits, self.v1_limits) {
                (true, true) => ("MB per idle sandbox with v1 limits", 0.75),
                (true, false) => ("MB per idle sandbox with v2 limits", 0.75),
                (false, true | false) => ("MB per idle sandbox without limits", 0.5),
            };
            gates.push(Gate::at_most(name, found.mb_each_available.max(found.mb_each_used), limit));
        }
        let through = self.throughput.map(|found| found.gb_per_s);
        gates.extend(through.map(|value| Gate::at_least("stdout, GB/s", value, 1.0)));
        if let Some(load) = &self.load {
            gates.extend([
                Gate::at_least("acquire and return, untouched, /s", load.untouched_per_s, 20_000.0),
                Gate::at_least("acquire, one command, return, /s", load.one_command_per_s, 300.0),
                Gate::at_least("exec, /s", load.exec_per_s, 2_000.0),
                Gate::at_most(
                    "acquire at half the rate, p99 / p50",
                    load.open_loop_p99_us / load.open_loop_p50_us,
                    10.0,
                ),
                Gate::at_most(
                    format!("MB more after {} acquires and returns", load.rounds),
                    load.growth_mb,
                    8.0,
                ),
            ]);
        }
        if let Some(rates) = &self.processes {
            gates.extend([
                Gate::at_least("processes, /s (Blaxel 478)", rates.exec_per_s, 2_000.0),
                Gate::at_least("log followed, MB/s (Blaxel 0.08)", rates.stream_mb_per_s, 200.0),
            ]);
        }
        gates.extend(self.policy_memory.map(|found| {
            let most = found.added_mb_available.max(found.added_mb_used);
            let name = format!("MB that a policy adds to each of {} sandboxes", found.sandboxes);
            Gate::at_most(name, most, network::MEMORY_LIMIT_MB)
        }));
        gates
    }

    /// Promises about times at one pace.
    fn gates_of_times(&self, pace: Pace) -> Vec<Gate> {
        let mut gates = Vec::new();
        let word = pace.word();
        for (name, limit) in RATIOS {
            let ratio = self.samples.ratio(name, BARE, pace);
            gates.extend(
                ratio.map(|ratio| Gate::at_most(format!("{name} / bare ({word})"), ratio, limit)),
            );
        }
        for (name, to, limit) in server::RATIOS {
            let ratio = self.samples.ratio(name, to, pace);
            gates.extend(
                ratio.map(|ratio| Gate::at_most(format!("{name} / {to} ({word})"), ratio, limit)),
            );
        }
        for (name, other) in other_binary::PAIRS {
            let ratio = self.samples.ratio(name, other, pace);
            gates.extend(ratio.map(|ratio| {
                Gate::at_most(format!("{name} / {other} ({word})"), ratio, other_binary::LIMIT)
            }));
        }
        for (name, limit) in [("launch, brought root", 1.3), ("launch, ordinary user", 1.5)] {
            let ratio = self.samples.ratio(name, "launch, spare network", pace);
            gates.extend(ratio.map(|ratio| {
                Gate::at_most(format!("{name} / launch, spare network ({word})"), ratio, limit)
            }));
        }
        for (name, limit_ms, ash_ms) in sessions::LIMITS {
            let middle = self.samples.get(name, pace).and_then(|found| found.percentile(50));
            gates.extend(middle.map(|middle| {
                let beside = ash_ms.map_or_else(String::new, |ms| format!("; Ash says {ms}"));
                let name = format!("{name}, ms ({word}{beside})");
                Gate::at_most(name, middle.as_secs_f64() * 1e3, limit_ms)
            }));
        }
        let ratio = self.samples.ratio(sessions::COLD_MUCH, sessions::COLD, pace);
        gates.extend(ratio.map(|ratio| {
            let name = format!("{} / {} ({word})", sessions::COLD_MUCH, sessions::COLD);
            Gate::at_most(name, ratio, sessions::MUCH_LIMIT)
        }));
        gates.extend(self.gates_of_processes(pace));
        gates.extend(self.gates_of_containers(pace));
        gates.extend(network::gates(&self.samples, pace));
        let ratio = self.samples.ratio("bwrap", "launch, spare network", pace);
        gates.extend(ratio.map(|ratio| {
            Gate::at_least(format!("bwrap / launch, spare network ({word})"), ratio, 3.5)
        }));
        gates
    }

    /// Promises about processes, with the figures of Blaxel's own server.
    fn gates_of_processes(&self, pace: Pace) -> Vec<Gate> {
        let word = pace.word();
        let ms = |name| {
            let middle = self.samples.get(name, pace).and_then(|found| found.percentile(50));
            middle.map(|middle| middle.as_secs_f64() * 1e3)
        };
        let mut gates = Vec::new();
        let ratio = self.samples.ratio(processes::EXEC, BARE_TRUE, pace);
        gates.extend(ratio.map(|ratio| {
            let name = format!("{} / {BARE_TRUE} ({word}; Blaxel 53 ms)", processes::EXEC);
            Gate::at_most(name, ratio, processes::EXEC_LIMIT)
        }));
        for (name, limit_ms, blaxel_ms) in processes::LIMITS {
            gates.extend(ms(name).map(|middle| {
                Gate::at_most(format!("{name}, ms ({word}; Blaxel {blaxel_ms})"), middle, limit_ms)
            }));
        }
        if let (Some(awake), Some(frozen)) = (ms(processes::AWAKE), ms(processes::FROZEN)) {
            let name = format!("waking on a request adds, ms ({word})");
            gates.push(Gate::at_most(name, frozen - awake, processes::THAW_LIMIT_MS));
        }
        gates
    }

    /// Promises about containers, compared with native sandboxes and with the engine.
    fn gates_of_containers(&self, pace: Pace) -> Vec<Gate> {
        use containers as of;
        let word = pace.word();
        let ratio = |name, to| self.samples.ratio(name, to, pace);
        let named = |name, to| format!("{name} / {to} ({word})");
        let mut gates = Vec::new();
        gates.extend(
            ratio(of::DOCKER, of::NATIVE).map(|value| {
                Gate::at_most(named(of::DOCKER, of::NATIVE), value, of::CHECKOUT_LIMIT)
            }),
        );
        gates.extend(
            ratio(of::ENGINE_EXEC, of::EXEC).map(|value| {
                Gate::at_least(named(of::ENGINE_EXEC, of::EXEC), value, of::EXEC_GAIN)
            }),
        );
        let middle = self.samples.get(of::RENEWED, pace).and_then(|found| found.percentile(50));
        gates.extend(middle.map(|middle| {
            let name = format!("{}, ms ({word})", of::RENEWED);
            Gate::at_most(name, middle.as_secs_f64() * 1e3, of::RENEWED_LIMIT_MS)
        }));
        gates.extend(ratio(of::RENEWED_MUCH, of::RENEWED).map(|value| {
            Gate::at_most(named(of::RENEWED_MUCH, of::RENEWED), value, of::MUCH_LIMIT)
        }));
        gates.extend(
            ratio(of::REFILL, of::RUNS)
                .map(|value| Gate::at_most(named(of::REFILL, of::RUNS), value, 1.0)),
        );
        gates
    }

    pub(crate) fn json(&self) -> Value {
        let mut latency = Vec::new();
        for name in self.samples.names() {
            for pace in Pace::ALL {
                let Some(series) = self.samples.get(name, pace) else { continue };
                let us = |percent| series.percentile(percent).map(|time| time.as_secs_f64() * 1e6);
                latency.push(json!({
                    "name": name,
                    "pace": pace.word(),
                    "n": series.len(),
                    "p50_us": us(50),
                    "p99_us": us(99),
                    "min_us": series.least().map(|time| time.as_secs_f64() * 1e6),
                    "ratio_to_bare": self.samples.ratio(name, BARE, pace),
                }));
            }
        }
        let rates = self.rates.iter().map(|rate| {
            json!({
                "network": rate.network,
                "concurrency": rate.concurrency,
                "launches_per_s": rate.launches_per_s,
                "cycles_per_s": rate.cycles_per_s,
            })
        });
        let memory = self.footprints.iter().map(|found| {
            json!({
                "limits": found.limits,
                "sandboxes": found.sandboxes,
                "mb_each_available": found.mb_each_available,
                "mb_each_used": found.mb_each_used,
                "launch_s": found.launch_s,
            })
        });
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|one| json!({ "name": one.name, "why": one.why }));
        json!({
            "machine": self.machine,
            "latency": latency,
            "rates": rates.collect::<Vec<_>>(),
            "memory": memory.collect::<Vec<_>>(),
            "stdout": self.throughput.map(|found| json!({
                "gb_per_s": found.gb_per_s,
                "bare_gb_per_s": found.bare_gb_per_s,
            })),
            "server": self.load,
            "processes": self.processes,
            "policy_memory": self.policy_memory,
            "gates": self.gates(),
            "skipped": skipped.collect::<Vec<_>>(),
        })
    }

    pub(crate) fn print(&self, output: &Output) {
        self.print_latency(output);
        self.print_rates(output);
        self.print_gates(output);
        for one in &self.skipped {
            let word = output.paint(Paint::Middling, "not measured");
            output.say(&format!("{word}: {}: {}", one.name, one.why));
        }
    }

    fn print_latency(&self, output: &Output) {
        if self.samples.names().is_empty() {
            return;
        }
        let mut table = Table::new(&["", "n", "p50", "p99", "x bare", "n", "p50", "p99", "x bare"]);
        for name in self.samples.names() {
            let mut row = vec![(*name).to_owned()];
            for pace in Pace::ALL {
                let series = self.samples.get(name, pace);
                let time = |percent| {
                    let time = series.and_then(|series| series.percentile(percent));
                    time.map_or_else(String::new, duration::words)
                };
                row.push(series.map_or_else(String::new, |series| series.len().to_string()));
                row.extend([time(50), time(99)]);
                let ratio = self.samples.ratio(name, BARE, pace);
                row.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
            }
            table.row(row);
        }
        output.say(
            &output
                .paint(Paint::Strong, "Times: with a pause before each sample, and back to back"),
        );
        output.say(&table.text());
    }

    fn print_rates(&self, output: &Output) {
        if !self.rates.is_empty() {
            let mut table = Table::new(&["network", "at once", "launches/s", "with removal/s"]);
            for rate in &self.rates {
                table.row(vec![
                    rate.network.to_owned(),
                    rate.concurrency.to_string(),
                    format!("{:.0}", rate.launches_per_s),
                    format!("{:.0}", rate.cycles_per_s),
                ]);
            }
            output.say(&output.paint(Paint::Strong, "Launches"));
            output.say(&table.text());
        }
        if !self.footprints.is_empty() {
            let head = ["limits", "sandboxes", "MB each (available)", "MB each (used)", "made in"];
            let mut table = Table::new(&head);
            for found in &self.footprints {
                table.row(vec![
                    if found.limits { "on" } else { "off" }.to_owned(),
                    found.sandboxes.to_string(),
                    format!("{:.3}", found.mb_each_available),
                    format!("{:.3}", found.mb_each_used),
                    format!("{:.1} s", found.launch_s),
                ]);
            }
            output.say(&output.paint(Paint::Strong, "Memory of an idle sandbox"));
            output.say(&table.text());
        }
        if let Some(found) = self.throughput {
            let title = output.paint(Paint::Strong, "Output of a program");
            output.say(&format!(
                "{title}\n{:.2} GB/s from a sandbox, {:.2} GB/s without one\n",
                found.gb_per_s, found.bare_gb_per_s
            ));
        }
    }

    fn print_gates(&self, output: &Output) {
        let gates = self.gates();
        if gates.is_empty() {
            return;
        }
        let mut table = Table::new(&["promise", "measured", "must be", ""]);
        for gate in &gates {
            let sign = if gate.at_least { "≥" } else { "≤" };
            table.row(vec![
                gate.name.clone(),
                format!("{:.3}", gate.value),
                format!("{sign} {}", gate.limit),
                if gate.met {
                    output.paint(Paint::Good, "kept")
                } else {
                    output.paint(Paint::Bad, "missed")
                },
            ]);
        }
        output.say(&output.paint(Paint::Strong, "Promises"));
        output.say(&table.text());
    }
}

/// Columns that line up: the first to the left, the others to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|word| (*word).to_owned()).collect()] }
    }

    fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                if column == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn report_columns_line_up() {
        let mut table = Table::new(&["", "p50"]);
        table.row(vec!["bare".into(), "250 µs".into()]);
        table.row(vec!["docker run".into(), "1.2 s".into()]);
        assert_eq!(table.text(), "               p50\nbare        250 µs\ndocker run   1.2 s\n");
    }

    #[test]
    fn promises_are_judged_by_ratio_and_in_the_right_direction() {
        let mut report = Report::default();
        let mut push = |name, us| {
            report.samples.push(name, Pace::Spaced, Duration::from_micros(us));
        };
        push(BARE, 400);
        push("exec", 410);
        push("launch, spare network", 800);
        push("bwrap", 3200);
        report.throughput = Some(Throughput { gb_per_s: 0.5, bare_gb_per_s: 2.0 });
        let met: Vec<_> = report.gates().iter().map(|gate| (gate.name.clone(), gate.met)).collect();
        let expected = [
            ("exec / bare (spaced)", true),
            ("launch, spare network / bare (spaced)", false),
            ("bwrap / launch, spare network (spaced)", true),
            ("stdout, GB/s", false),
        ];
        assert_eq!(met, expected.map(|(name, met)| (name.to_owned(), met)));
        assert_eq!(report.json()["latency"].as_array().unwrap().len(), 4);
    }
}
