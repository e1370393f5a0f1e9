//! The environment of programs, in layers: what every sandbox has, then what is bound to this one,
//! then what the program is started with. Values are often secrets, so nothing here is ever
//! printed.

use std::collections::BTreeMap;
use std::ffi::CString;

use guest_protocol::Env;
use guest_protocol::message::{Fault, FaultCode};

use super::fault::fault;

/// Marks a program and everything that inherits from it with the channel that started it.
pub(super) const TAG: &str = "SHOAL_PROCESS";

/// The default search path for programs.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const DEFAULTS: [(&str, &str); 5] = [
    ("LANG", "C.UTF-8"),
    ("LOGNAME", "agent"),
    ("PATH", DEFAULT_PATH),
    ("SHELL", "/bin/sh"),
    ("USER", "agent"),
];

/// The variables that name the scale file: ours, and the one that programs written for another
/// system know.
const SCALE: [&str; 2] = ["SHOAL_SCALE_FILE", "BLAXEL_SCALE_FILE"];

const TERMINAL: (&str, &str) = ("TERM", "xterm-256color");

/// Names and values of one program; later ones have replaced earlier ones.
pub(super) struct Environment<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Environment<'a> {
    /// For a program started with `own` in a sandbox that `bound` is bound to.
    pub(super) fn new(
        home: &'a str,
        scale: Option<&'a str>,
        bound: &'a Env,
        own: &'a Env,
        terminal: bool,
    ) -> Self {
        let mut names = BTreeMap::from(DEFAULTS);
        names.insert("HOME", home);
        if let Some(scale) = scale {
            names.extend(SCALE.map(|name| (name, scale)));
        }
        if terminal {
            names.insert(TERMINAL.0, TERMINAL.1);
        }
        for (name, value) in bound.0.iter().chain(&own.0) {
            names.insert(name, value);
        }
        Self(names)
    }

    /// Where the program is looked for.
    pub(super) fn path(&self) -> &'a str {
        self.0.get("PATH").copied().unwrap_or(DEFAULT_PATH)
    }

    /// In the kernel's form, with the mark of the channel first.
    pub(super) fn to_list(&self, channel: u32) -> Result<Vec<CString>, Fault> {
        let mut list = Vec::with_capacity(self.0.len() + 1);
        list.push(text(format!("{TAG}={channel}"))?);
        for (name, value) in &self.0 {
            if *name != TAG {
                list.push(text(format!("{name}={value}"))?);
            }
        }
        Ok(list)
    }
}

/// Checks that all names and values are valid.
pub(super) fn check(env: &Env) -> Result<(), Fault> {
    let is_bad = |(name, value): &(String, String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    match env.0.iter().find(|pair| is_bad(pair)) {
        None => Ok(()),
        Some((name, _)) => {
            Err(fault(FaultCode::Invalid, format!("{name:?} cannot be an environment variable")))
        }
    }
}

/// A string for the kernel, which must not contain a zero byte.
pub(super) fn text(string: impl Into<Vec<u8>>) -> Result<CString, Fault> {
    CString::new(string).map_err(|_| fault(FaultCode::Invalid, "a string has a zero byte in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().copied().collect()
    }

    #[test]
    fn later_environment_variables_replace_earlier_ones() {
        let bound = env(&[("A", "bound"), ("B", "bound"), ("PATH", "/opt")]);
        let own = env(&[("B", "own"), (TAG, "99"), ("LANG", "")]);
        let environment = Environment::new("/workspace", Some("/s"), &bound, &own, false);
        assert_eq!(environment.path(), "/opt");
        let list = environment.to_list(7).unwrap();
        let list: Vec<_> = list.iter().map(|pair| pair.to_str().unwrap()).collect();
        let expected = [
            "SHOAL_PROCESS=7",
            "A=bound",
            "B=own",
            "BLAXEL_SCALE_FILE=/s",
            "HOME=/workspace",
            "LANG=",
            "LOGNAME=agent",
            "PATH=/opt",
            "SHELL=/bin/sh",
            "SHOAL_SCALE_FILE=/s",
            "USER=agent",
        ];
        assert_eq!(list, expected);
    }

    #[test]
    fn invalid_environment_variables_are_refused_without_their_value() {
        assert_eq!(check(&env(&[("A", "=")])), Ok(()));
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "secret\0")] {
            let fault = check(&env(&[(name, value)])).unwrap_err();
            assert_eq!(fault.code, FaultCode::Invalid);
            assert!(!fault.message.contains("secret"));
        }
    }
}
