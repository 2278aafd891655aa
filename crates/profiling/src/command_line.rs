//! Returns the command line of this process with secrets masked, because the pages that show it are visible
//! to everyone who can read the member's metrics.

/// Text that replaces a secret.
const MASK: &str = "***";
/// Flags whose names contain one of [`SECRET_WORDS`], but whose values are not secret.
const NO_SECRETS: [&str; 3] = ["auth-token", "auth-token-ttl", "initial-cluster-token"];
/// The value of a flag is treated as secret if the name of the flag contains one of these words. This also
/// protects flags that are added later.
const SECRET_WORDS: [&str; 4] = ["password", "secret", "token", "user"];

/// Returns the words of the command line. The values of flags for passwords, secrets, users and tokens, and
/// the user names and passwords in URLs, are replaced by a mask.
pub fn command_line() -> Vec<String> {
    masked(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

fn masked(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut is_value_of_secret = false;
    let mask = |word: String| {
        if std::mem::take(&mut is_value_of_secret) {
            return MASK.to_owned();
        }
        let name = word.strip_prefix("--").or(word.strip_prefix('-'));
        match name.map(|name| name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value))))
        {
            Some((name, value)) if is_secret(name) => {
                is_value_of_secret = value.is_none();
                let until_value = word.len() - value.map_or(0, str::len);
                format!("{}{}", &word[..until_value], value.map_or("", |_| MASK))
            }
            _ => without_user_info(&word),
        }
    };
    words.map(mask).collect()
}

fn is_secret(flag: &str) -> bool {
    !NO_SECRETS.contains(&flag) && flag.split('-').any(|word| SECRET_WORDS.contains(&word))
}

/// Returns the text with the `user:password@` of each URL masked.
fn without_user_info(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + "://".len());
        shown.push_str(before);
        let authority = behind.find(['/', '?', '#']).unwrap_or(behind.len());
        let host = match behind[..authority].rfind('@') {
            Some(at) => {
                shown.push_str(MASK);
                at
            }
            None => 0,
        };
        rest = &behind[host..];
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        masked(line.split(' ').map(str::to_owned)).join(" ")
    }

    #[test]
    fn secrets_are_masked_however_they_are_given() {
        for (given, told) in [
            ("m --discovery-password=p", "m --discovery-password=***"),
            ("m -discovery-password=p=q --name a", "m -discovery-password=*** --name a"),
            ("m --discovery-password p --name a", "m --discovery-password *** --name a"),
            ("m --discovery-user --x --name a", "m --discovery-user *** --name a"),
            ("m --discovery-user=u:p", "m --discovery-user=***"),
            ("m --discovery-token t", "m --discovery-token ***"),
            ("m --auth-jwt-token t --password=", "m --auth-jwt-token *** --password=***"),
            (
                "m --auth-token=jwt,pub-key=f --auth-token-ttl 5",
                "m --auth-token=jwt,pub-key=f --auth-token-ttl 5",
            ),
            ("m --initial-cluster-token=t --user-agents", "m --initial-cluster-token=t --user-agents"),
            ("m --x=http://u:p@h:1/a@b,https://h?c@d,e", "m --x=http://***@h:1/a@b,https://h?c@d,e"),
            ("m --x=http://a/,http://u@p@h", "m --x=http://a/,http://***@h"),
            (
                "m --x=http://u:p,q@h:1,https://a:2,https://u:p@b",
                "m --x=http://***@h:1,https://a:2,https://***@b",
            ),
            ("m -- - --=x é://", "m -- - --=x é://"),
        ] {
            assert_eq!(shown(given), told, "{given}");
        }
    }
}
