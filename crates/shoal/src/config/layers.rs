//! Merges the layers of the configuration: defaults, file, environment, flags. The later one wins,
//! and each value keeps its source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::ash_variables;
use super::file::{BYTES_MAX, File};
use super::flags::Overrides;
use super::host_context::HostContext;
use super::keys::{self, Kind};
use super::settings::{Config, InvalidValue};
use super::source::{ConfigError, Source};

const CORRECT: &str = "correct it; `shoal config` shows where each value comes from";
/// The file of a machine.
const SYSTEM_FILE: &str = "/etc/shoal/shoal.toml";
/// The file in a data directory.
const DATA_DIR_FILE: &str = "shoal.toml";
const DATA_DIR: &str = "server.data_dir";
const FILE_VARIABLE: &str = "SHOAL_CONFIG";
const ASH_LISTEN: &str = "ash.listen";
/// Where Ash listens, on this machine alone.
const ASH_HOST: &str = "127.0.0.1";
const ASH_PORT: &str = "4100";
const BLAXEL_LISTEN: &str = "blaxel.listen";
/// Where the API of one sandbox is, on this machine alone.
const BLAXEL_ADDRESS: &str = "127.0.0.1:8080";

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sourced {
    pub(crate) value: Value,
    pub(crate) source: Source,
}

/// The configuration in effect, with the source of each value.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    /// Plain values by path.
    pub(crate) values: BTreeMap<String, Sourced>,
    /// Where each template that is given came from.
    pub(crate) templates: Vec<Source>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Variables that begin with SHOAL_ and are no key.
    pub(crate) unknown_variables: Vec<String>,
    /// A line about each variable of Ash that is set and has no effect.
    pub(crate) ash_without_effect: Vec<String>,
    /// The positions of its values.
    read: Option<File>,
}

impl Effective {
    /// Refuses a configuration with which no server would start.
    pub(crate) fn refuse_unstartable(&self) -> Result<(), ConfigError> {
        let refused = self.config.refuse_unstartable();
        refused.map_err(|wrong| located(wrong, &self.values, self.read.as_ref()))
    }
}

/// An invalid value with its place.
fn located(
    wrong: InvalidValue,
    values: &BTreeMap<String, Sourced>,
    file: Option<&File>,
) -> ConfigError {
    let set = values
        .iter()
        .find(|(path, _)| wrong.key == **path || wrong.key.starts_with(&format!("{path}.")));
    let in_file = file.and_then(|file| file.source(&wrong.key));
    let source = match set {
        // The file knows the position of each part of a list.
        Some((_, Sourced { source: Source::File { .. }, .. })) | None => in_file,
        Some((_, sourced)) => Some(sourced.source.clone()),
    };
    ConfigError {
        source: source.unwrap_or(Source::Default),
        key: Some(wrong.key),
        problem: wrong.problem,
        remedy: CORRECT.to_owned(),
    }
}

/// Reads all layers and gives the configuration in effect.
pub(crate) fn load(flags: &Overrides, context: &HostContext) -> Result<Effective, ConfigError> {
    let mut stack = Stack::of_defaults(context);
    let typed = flags.typed();
    let with_ash = flags.speaks_ash();
    let data_dir = HostContext::absolute(&data_dir_before_file(&typed, context, with_ash)?);
    let found = find_file(flags, context, &data_dir);
    let file = found.as_ref().map(read_file).transpose()?;
    if let Some(file) = &file {
        stack.lay_file(file);
        refuse_to_point_away(file, &data_dir, &stack)?;
    }
    if flags.speaks_blaxel() && !stack.values.contains_key(BLAXEL_LISTEN) {
        stack.lay_text(BLAXEL_LISTEN, BLAXEL_ADDRESS, Source::Flag("--blaxel".to_owned()))?;
    }
    stack.lay_environment(context, with_ash)?;
    for (path, text, flag) in typed {
        stack.lay_text(&path, &text, Source::Flag(flag))?;
    }
    stack.values.entry(DATA_DIR.to_owned()).and_modify(|sourced| {
        // Relative to the current directory of the user, not to that of the server.
        if let Value::String(path) = &mut sourced.value {
            *path = HostContext::absolute(Path::new(path)).to_string_lossy().into_owned();
        }
    });
    let unknown_variables =
        context.env.keys().filter(|name| keys::is_unknown(name)).cloned().collect();
    let found = found.map(|found| found.path);
    let mut effective = stack.finish(file, found, unknown_variables)?;
    effective.ash_without_effect = ash_variables::without_effect(&effective.config, context);
    Ok(effective)
}

/// Reads one file alone, on top of the defaults.
pub(crate) fn check(path: &Path, context: &HostContext) -> Result<Effective, ConfigError> {
    let choice =
        FileChoice { path: path.to_owned(), chosen_by: Some(Source::Flag("--check".to_owned())) };
    let mut stack = Stack::of_defaults(context);
    let file = read_file(&choice)?;
    stack.lay_file(&file);
    stack.finish(Some(file), Some(choice.path), Vec::new())
}

/// A file to read, and what named it; none for a file at a usual place.
struct FileChoice {
    path: PathBuf,
    chosen_by: Option<Source>,
}

fn find_file(flags: &Overrides, context: &HostContext, data_dir: &Path) -> Option<FileChoice> {
    if let Some(path) = flags.file() {
        return Some(FileChoice {
            path: path.to_owned(),
            chosen_by: Some(Source::Flag("--config".into())),
        });
    }
    if let Some(path) = context.variable(FILE_VARIABLE) {
        let chosen_by = Some(Source::Environment(FILE_VARIABLE.to_owned()));
        return Some(FileChoice { path: path.into(), chosen_by });
    }
    let places = [data_dir.join(DATA_DIR_FILE), PathBuf::from(SYSTEM_FILE)];
    places.into_iter().find(|path| path.exists()).map(|path| FileChoice { path, chosen_by: None })
}

/// The data directory as known before the file is read, because the file may lie in it.
fn data_dir_before_file(
    typed: &[(String, String, String)],
    context: &HostContext,
    of_ash: bool,
) -> Result<PathBuf, ConfigError> {
    if let Some((_, path, _)) = typed.iter().rev().find(|(key, _, _)| key == DATA_DIR) {
        return Ok(PathBuf::from(path));
    }
    let ours = keys::variable(DATA_DIR);
    let ashs = keys::OF_ASH_WHERE_ASKED.iter().find(|(_, path)| of_ash && *path == DATA_DIR);
    for name in [ours.as_str()].into_iter().chain(ashs.map(|(name, _)| *name)) {
        if let Some(value) = context.variable(name) {
            return text_of(name, value).map(PathBuf::from);
        }
    }
    Ok(context.data_dir())
}

/// Refuses a file that lies in one data directory and names another: either could be meant.
fn refuse_to_point_away(file: &File, data_dir: &Path, stack: &Stack) -> Result<(), ConfigError> {
    let named = stack.values.get(DATA_DIR).filter(|sourced| sourced.source != Source::Default);
    let named = named.and_then(|sourced| sourced.value.as_str());
    match named {
        Some(named)
            if file.path() == data_dir.join(DATA_DIR_FILE) && Path::new(named) != data_dir =>
        {
            Err(ConfigError {
                source: file.source(DATA_DIR).unwrap_or(Source::Default),
                key: Some(DATA_DIR.to_owned()),
                problem: "the file lies in one data directory and names another".to_owned(),
                remedy: format!(
                    "remove this line, or name the file with --config or {FILE_VARIABLE}"
                ),
            })
        }
        Some(_) | None => Ok(()),
    }
}

fn read_file(choice: &FileChoice) -> Result<File, ConfigError> {
    let path = &choice.path;
    let refused = |problem: String| ConfigError {
        source: choice.chosen_by.clone().unwrap_or(Source::Default),
        key: None,
        problem: format!("cannot read {}: {problem}", path.display()),
        remedy: "check the path and its permissions".to_owned(),
    };
    let length = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?.len();
    if length > BYTES_MAX {
        return Err(refused(format!("the file has more than {BYTES_MAX} bytes")));
    }
    match std::fs::read_to_string(path) {
        Ok(text) => File::parse(path, text),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// A variable as text.
fn text_of<'a>(name: &str, value: &'a std::ffi::OsString) -> Result<&'a str, ConfigError> {
    value.to_str().ok_or_else(|| ConfigError {
        source: Source::Environment(name.to_owned()),
        key: None,
        problem: "the value is not UTF-8".to_owned(),
        remedy: "set it to UTF-8 text".to_owned(),
    })
}

/// The values so far.
struct Stack {
    values: BTreeMap<String, Sourced>,
    templates: Option<Value>,
    template_sources: Vec<Source>,
}

impl Stack {
    fn of_defaults(context: &HostContext) -> Self {
        let mut table = Table::try_from(Config::defaults(context)).unwrap_or_default();
        let templates = table.remove(keys::TEMPLATES);
        let sourced = |(path, value)| (path, Sourced { value, source: Source::Default });
        let template_sources = Vec::new();
        let values = keys::leaves(&table).into_iter().map(sourced).collect();
        Self { values, templates, template_sources }
    }

    fn lay_file(&mut self, file: &File) {
        for (path, value) in file.values() {
            let source = file.source(&path).unwrap_or(Source::Default);
            self.values.insert(path, Sourced { value, source });
        }
        if let Some(templates) = file.templates() {
            let count = templates.as_array().map_or(0, Vec::len);
            let place = |n| file.source(&format!("{}.{n}", keys::TEMPLATES));
            self.template_sources =
                (0..count).map(|n| place(n).unwrap_or(Source::Default)).collect();
            self.templates = Some(templates.clone());
        }
    }

    fn lay_environment(
        &mut self,
        context: &HostContext,
        with_ash: bool,
    ) -> Result<(), ConfigError> {
        if with_ash {
            self.lay_address_of_ash(context)?;
        }
        let where_asked = keys::OF_ASH_WHERE_ASKED.iter().filter(|_| with_ash);
        let of_ash = keys::OF_ASH.iter().chain(where_asked);
        let of_ash = of_ash.map(|(name, path)| ((*name).to_owned(), *path));
        let ours = keys::all().keys().map(|path| (keys::variable(path), path.as_str()));
        // Our variables come after those of Ash, so that ours win.
        for (name, path) in of_ash.chain(ours) {
            if let Some(value) = context.variable(&name) {
                let text = text_of(&name, value)?;
                self.lay_text(path, text, Source::Environment(name))?;
            }
        }
        Ok(())
    }

    /// Ash has one variable for the host and one for the port. If neither is set, the address in
    /// the file counts, or else the port that clients of Ash expect.
    fn lay_address_of_ash(&mut self, context: &HostContext) -> Result<(), ConfigError> {
        let half = |name: &'static str| {
            let value = context.variable(name).map(|value| text_of(name, value)).transpose()?;
            // For a service called `ash`, Kubernetes sets ASH_PORT to the URL of that service.
            let value = value.filter(|value| !value.contains("://"));
            Ok(value.map(|value| (name, value)))
        };
        let (host, port) = (half("ASH_HOST")?, half("ASH_PORT")?);
        let source = match (host, port) {
            (None, None) if self.values.contains_key(ASH_LISTEN) => return Ok(()),
            (None, None) => Source::Flag("--ash".to_owned()),
            (_, Some((name, _))) | (Some((name, _)), None) => Source::Environment(name.to_owned()),
        };
        let host =
            host.map_or(ASH_HOST, |(_, host)| if host == "localhost" { ASH_HOST } else { host });
        let port = port.map_or(ASH_PORT, |(_, port)| port);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        self.lay_text(ASH_LISTEN, &format!("{host}:{port}"), source)
    }

    /// Sets a value that is given as text.
    fn lay_text(&mut self, path: &str, text: &str, source: Source) -> Result<(), ConfigError> {
        let refused = |problem: String, remedy: String| ConfigError {
            source: source.clone(),
            key: Some(path.to_owned()),
            problem,
            remedy,
        };
        let Some(&kind) = keys::all().get(path) else {
            let remedy = keys::guess(path, keys::all().keys()).map_or_else(
                || "`shoal config` shows every key there is".to_owned(),
                |key| format!("did you mean {key}?"),
            );
            return Err(refused("there is no such key".to_owned(), remedy));
        };
        let expected = |kind: Kind| format!("give it {}", kind.words());
        let value = kind
            .read(text)
            .ok_or_else(|| refused(format!("{text:?} is not {}", kind.words()), expected(kind)))?;
        // Parsed alone, so that an error can only be about this value.
        let mut alone = Table::new();
        keys::insert(&mut alone, path, value.clone());
        alone.try_into::<Config>().map_err(|error| {
            let problem = error.message().trim().replace('\n', ", ");
            refused(format!("{text:?}: {problem}"), expected(kind))
        })?;
        self.values.insert(path.to_owned(), Sourced { value, source });
        Ok(())
    }

    fn finish(
        self,
        file: Option<File>,
        path: Option<PathBuf>,
        unknown_variables: Vec<String>,
    ) -> Result<Effective, ConfigError> {
        let mut table = Table::new();
        for (path, sourced) in &self.values {
            keys::insert(&mut table, path, sourced.value.clone());
        }
        if let Some(templates) = self.templates {
            table.insert(keys::TEMPLATES.to_owned(), templates);
        }
        let config: Config = table.try_into().map_err(|error: toml::de::Error| ConfigError {
            source: Source::Default,
            key: None,
            problem: error.message().to_owned(),
            remedy: CORRECT.to_owned(),
        })?;
        config.validate().map_err(|wrong| located(wrong, &self.values, file.as_ref()))?;
        Ok(Effective {
            config,
            values: self.values,
            templates: self.template_sources,
            file: path,
            unknown_variables,
            ash_without_effect: Vec::new(),
            read: file,
        })
    }
}
