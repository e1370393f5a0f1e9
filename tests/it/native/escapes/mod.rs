//! Escapes from containers that were published over the years, as far as they need no hole in the
//! kernel, tried again here. Each test has the number in its name and says what it was; most of
//! them were mistakes of a runtime, and ours must not make them again.

mod host_entry;
mod images;
mod kernel_interfaces;
mod roots;
mod workspaces;

use anyhow::{Result, ensure};
use serde_json::json;

use super::isolation::{PROBE, as_meant, calls, show};
use super::node::{Node, name_of, on_node};

/// Runs attempts as the isolation probe does: each must be refused as it is meant to be.
fn refused(script: &str) -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let sandbox = node.sandbox().await?;
            let given =
                json!({ "group": "escapes", "calls": calls(), "users": name_of(node.users()) })
                    .to_string();
            let program = format!("{PROBE}\n{script}\nreport()\n");
            let said = node.python(&sandbox, &program, &[&given]).await?;
            show(&said);
            let attempts = said.lines().filter(|line| line.starts_with("escapes/"));
            let through: Vec<&str> = attempts.filter(|line| !as_meant(line)).collect();
            ensure!(through.is_empty(), "not refused, or not as meant:\n{}", through.join("\n"));
            ensure!(!said.contains("tried: 0") && said.contains("tried: "), "{said}");
            sandbox.inside().ping().await?;
            Ok(())
        },
    )
}
