/// Recipient of a request of [`crate::Peers::request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The member with this id. The request is sent to one of its URLs; if that fails, the next request uses
    /// another one.
    Member(u64),
    /// The server at this URL, such as `http://10.0.0.1:2380`.
    Url(String),
}
