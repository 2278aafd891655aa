//! `version`: of the tool and of the API it speaks.

use crate::call::Call;
use crate::failure::Failure;

pub(super) fn version(call: &Call) -> Result<(), Failure> {
    let version = api::API_VERSION;
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    call.line(format!("etcdctl version: {version}\nAPI version: {minor}"))
}
