//! Checks a configuration file of etcd: collects the errors and warnings that Mainstay would report at a
//! start with it.

use config::{Entry, Invocation, Refusal};

/// Errors and warnings that Mainstay would report at a start with a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Path of the file.
    pub path: String,
    /// Errors because of which Mainstay would refuse to start.
    pub refusals: Vec<String>,
    /// Warnings that Mainstay would log.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Parses the file as `mainstay --config-file` does.
    pub fn of_file(path: &str) -> Settings {
        Settings::of(path, &[format!("--config-file={path}")], &[])
    }

    /// Parses the arguments and environment variables of a running member as a start would. `source` says where they
    /// come from.
    pub(crate) fn of(source: &str, arguments: &[String], environment: &[(String, String)]) -> Settings {
        let mut settings = Settings { path: source.to_owned(), ..Settings::default() };
        match config::parse(arguments, environment) {
            Ok(Invocation::Serve(parsed)) => settings.warnings = parsed.warnings.iter().map(line).collect(),
            Ok(Invocation::Help | Invocation::Version) => {}
            Err(Refusal::Syntax(text)) => settings.refusals.push(text),
            Err(Refusal::Invalid(entries)) => settings.refusals = entries.iter().map(line).collect(),
        }
        settings
    }
}

fn line(entry: &Entry) -> String {
    let fields = entry.fields.iter().map(|(name, value)| format!("; {name}: {value}"));
    format!("{}{}", entry.message, fields.collect::<String>())
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn a_file_is_judged_as_a_start_would() {
        let dir = TempDir::new("migrate-settings");
        let of = |text: &str| {
            let path = dir.path().join("etcd.yaml");
            std::fs::write(&path, text).unwrap();
            Settings::of_file(&path.to_string_lossy())
        };
        let sound = of("name: m1\ndata-dir: m1\nquota-backend-bytes: 100000000\n");
        assert_eq!((sound.refusals, sound.warnings), (Vec::new(), Vec::new()));
        let old = of("name: m1\nexperimental-compaction-batch-limit: 5\nno-such-key: 1\n");
        assert_eq!(old.refusals, Vec::<String>::new());
        assert!(old.warnings.iter().any(|text| text.contains("no-such-key")), "{:?}", old.warnings);
        let wrong = of("name: [\n");
        assert_eq!(wrong.refusals.len(), 1);
        let gone = Settings::of_file("/nonexistent/etcd.yaml");
        assert!(gone.refusals[0].contains("/nonexistent/etcd.yaml"), "{:?}", gone.refusals);
    }
}
