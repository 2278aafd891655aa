/// Recipient of a request outside of raft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Member, reached at any of its URLs that answers.
    Member(u64),
    /// Server at this URL, such as `http://10.0.0.1:2380`.
    Url(String),
}
