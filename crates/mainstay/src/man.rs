//! `mainstay man`: prints manual pages of a member and of each tool.

use std::ffi::OsString;
use std::process::ExitCode;

use cli::man::Page;

use crate::completion::{print, tree};

const RELEASE: &str = concat!("Mainstay ", env!("CARGO_PKG_VERSION"));
const MEMBER: &[&str] = &[
    "A member of a cluster that serves etcd's API, version 3. Its flags, environment variables and configuration file are etcd's.",
    "Without a command, it runs a member. Each flag can also be given as an environment variable: ETCD_ \
     and the flag's name in capitals, with underscores in place of hyphens. With --config-file, all flags \
     are read from that file instead.",
    "Started on a data directory of etcd, it continues as the same member and leaves etcd's files unchanged.",
];
const TOOL: &[&str] = &["It is used like etcd's tool; flags and environment variables have the same names."];

/// Prints the manual page of the member, or of the command that the only argument names. If there is no such
/// page, lists the pages that exist.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let page = match arguments {
        [] => page(None),
        [command] => page(command.to_str()),
        _ => None,
    };
    let Some(page) = page else {
        let names: Vec<&str> = tree().below.iter().map(|below| below.name).collect();
        eprintln!("man takes no argument, for the page of the server, or one of {}", names.join(", "));
        return ExitCode::from(2);
    };
    print(&page)
}

fn page(command: Option<&str>) -> Option<String> {
    let mut tree = tree();
    let Some(command) = command else {
        // Leave the flags and commands of the tools out of the member's page, because the tools have their
        // own pages.
        tree.below.iter_mut().for_each(|below| {
            below.flags.clear();
            below.below.clear();
        });
        let about = "a drop-in replacement for etcd, version 3";
        let see_also = &[
            ("mainstay-ctl", 1),
            ("mainstay-utl", 1),
            ("mainstay-bench", 1),
            ("mainstay-doctor", 1),
            ("mainstay-console", 1),
            ("mainstay-shadow", 1),
        ];
        return Some(
            Page { called: "mainstay", about, section: 8, release: RELEASE, description: MEMBER, see_also }
                .of(&tree),
        );
    };
    let below = tree.below.iter().find(|below| below.name == command)?;
    let called = format!("mainstay {command}");
    let see_also = &[("mainstay", 8)];
    Some(
        Page {
            called: &called,
            about: below.about,
            section: 1,
            release: RELEASE,
            description: TOOL,
            see_also,
        }
        .of(below),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_a_page_for_the_member_and_for_each_command() {
        let member = super::page(None).expect("the member's");
        assert!(member.contains("\\-\\-listen\\-client\\-urls") && member.contains(".SS \"ctl\""));
        for below in &super::tree().below {
            let page = super::page(Some(below.name)).expect("one for each");
            assert!(page.contains(&format!("mainstay\\-{}", below.name.replace('-', "\\-"))), "{page}");
        }
        assert_eq!(super::page(Some("nothing")), None);
    }
}
