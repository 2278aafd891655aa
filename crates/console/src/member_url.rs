//! Chooses the URL at which a listed member is reached: [`usable`]. If there is none, [`ExclusionReason`]
//! says why.

use api::url::Url;

use crate::source::Member;

/// Reason why no requests are sent to a listed member. Reasons further down are closer to a usable URL; if a
/// member has several URLs, the reason of the closest one is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExclusionReason {
    /// The member has no client URL: it has not started yet, or does not advertise any.
    NoUrl,
    /// None of the member's URLs is a valid client URL.
    Malformed,
    /// The member's URLs are Unix sockets. On the console's machine, these would be other files.
    Unix,
    /// The member's URLs have unspecified addresses, such as `0.0.0.0`. From the console, these would lead to
    /// its own machine.
    Unspecified,
    /// The member has only URLs without TLS, but the URLs given to the console, or those of its own member,
    /// use TLS.
    Plain,
    /// There are more members than the console keeps.
    TooMany,
}

impl ExclusionReason {
    /// Returns the word for this reason in the list of members. The pages have a text for each word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ExclusionReason::NoUrl => "none",
            ExclusionReason::Malformed => "malformed",
            ExclusionReason::Unix => "unix",
            ExclusionReason::Unspecified => "unspecified",
            ExclusionReason::Plain => "plain",
            ExclusionReason::TooMany => "many",
        }
    }
}

/// Returns the URL at which another member is reached. A URL of another machine is better than a loopback
/// URL; among these, a URL with TLS is better than one without.
///
/// # Errors
/// Returns the reason if the member has no usable URL. A Unix socket or an unspecified address would be on
/// the console's own machine. If `is_secure` is true, a URL without TLS is not usable, because tokens and
/// passwords would be sent in clear text.
pub(crate) fn usable(urls: &[String], is_secure: bool) -> Result<Url, ExclusionReason> {
    let is_unspecified =
        |url: &Url| url.host().parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified());
    let judged = urls.iter().map(|text| match Url::parse(text) {
        Err(_) => Err(ExclusionReason::Malformed),
        Ok(url) if url.scheme().is_unix() => Err(ExclusionReason::Unix),
        Ok(url) if is_unspecified(&url) => Err(ExclusionReason::Unspecified),
        Ok(url) if is_secure && !url.scheme().is_secure() => Err(ExclusionReason::Plain),
        Ok(url) => Ok(url),
    });
    let (mut best, mut nearest) = (None, ExclusionReason::NoUrl);
    let worth = |url: &Url| (url.is_local(), !url.scheme().is_secure());
    for url in judged {
        match url {
            Ok(url) if best.as_ref().is_none_or(|known| worth(&url) < worth(known)) => best = Some(url),
            Ok(_) => {}
            Err(why) => nearest = nearest.max(why),
        }
    }
    best.ok_or(nearest)
}

/// Returns the URL that is shown for the member that this process runs: if possible, one that other machines
/// can use.
pub(crate) fn own_url(member: &Member) -> Option<Url> {
    let urls: Vec<Url> = member.client_urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
    urls.iter().find(|url| !url.is_local()).or(urls.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_reached_at_an_address_that_others_can_use() {
        let usable = |urls: &[&str], is_secure| {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            usable(&urls, is_secure).map(|url| url.as_str().to_owned())
        };
        let url = |urls: &[&str]| usable(urls, false).ok();
        assert_eq!(url(&["http://127.0.0.1:1", "https://10.0.0.1:2"]).as_deref(), Some("https://10.0.0.1:2"));
        assert_eq!(url(&["http://localhost:1"]).as_deref(), Some("http://localhost:1"));
        assert_eq!(url(&["unix:///x", "http://[::1]:1", "http://h:1"]).as_deref(), Some("http://h:1"));
        assert_eq!(url(&["http://h:1", "https://h:2", "https://[::1]:3"]).as_deref(), Some("https://h:2"));
        let why = |urls: &[&str]| usable(urls, false).unwrap_err().word();
        assert_eq!(why(&[]), "none");
        assert_eq!(why(&["x", "ftp://h:1"]), "malformed");
        assert_eq!(why(&["x", "unix:///run/docker.sock"]), "unix");
        assert_eq!(why(&["http://0.0.0.0:1", "unix:///run/docker.sock", "https://[::]:1"]), "unspecified");
        let secure = |urls: &[&str]| usable(urls, true).ok();
        assert_eq!(secure(&["http://h:1", "https://127.0.0.1:1"]).as_deref(), Some("https://127.0.0.1:1"));
        assert_eq!(usable(&["http://h:1", "unix:///x"], true), Err(ExclusionReason::Plain));
    }
}
