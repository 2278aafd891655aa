//! Parses the conditions of `txn`, such as `mod("key") > "0"`.

use api::etcdserverpb::Compare;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use cli::Failure;
use cli::go::quote;

use crate::unquote::quoted;

/// Parses one condition.
///
/// COMPAT-50: etcdctl 3.7 crashes if the operator is unknown, and if a lease is compared. This function
/// returns an error for an unknown operator, and reads a lease as a hexadecimal id, as etcdctl 3.8 does.
///
/// # Errors
/// Returns the reason why the line is not valid, with the exit code of invalid input.
pub fn comparison(line: &[u8]) -> Result<Compare, Failure> {
    let shown = String::from_utf8_lossy(line);
    let Some(at) = line.iter().position(|b| *b == b'(') else {
        return Err(invalid(format!("malformed comparison: {shown}")));
    };
    let target = &line[..at];
    let parts = Parts::read(&line[at + 1..]);
    let Parts { key, operator, value: Some(value) } = parts else {
        let value = quote(b"");
        let (target, key) = (String::from_utf8_lossy(target), quote(&parts.key));
        let operator = String::from_utf8_lossy(&parts.operator);
        return Err(invalid(format!(
            "malformed comparison: {shown}; got {target}({key}) {operator} {value}"
        )));
    };
    let number = |radix| {
        let text = std::str::from_utf8(&value).ok();
        text.and_then(|text| i64::from_str_radix(text, radix).ok())
            .ok_or_else(|| invalid(format!("invalid txn compare request: {shown}")))
    };
    let (target, union) = match target {
        b"ver" | b"version" => (CompareTarget::Version, TargetUnion::Version(number(10)?)),
        b"c" | b"create" => (CompareTarget::Create, TargetUnion::CreateRevision(number(10)?)),
        b"m" | b"mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number(10)?)),
        b"val" | b"value" => (CompareTarget::Value, TargetUnion::Value(value.into())),
        b"lease" => (CompareTarget::Lease, TargetUnion::Lease(number(16)?)),
        unknown => {
            let unknown = String::from_utf8_lossy(unknown);
            return Err(invalid(format!("malformed comparison: {shown} (unknown target {unknown})")));
        }
    };
    let result = match &operator[..] {
        b"=" => CompareResult::Equal,
        b"!=" => CompareResult::NotEqual,
        b">" => CompareResult::Greater,
        b"<" => CompareResult::Less,
        unknown => {
            let unknown = String::from_utf8_lossy(unknown);
            return Err(invalid(format!(
                "malformed comparison: {shown} (unknown operator {unknown}; use =, !=, < or >)"
            )));
        }
    };
    Ok(Compare {
        result: result as i32,
        target: target as i32,
        key: key.into(),
        target_union: Some(union),
        ..Default::default()
    })
}

/// The parts of `"key") op "value"`. If the text has an error, the parts before it are kept, as by Go's
/// Sscanf, because the error message shows them.
#[derive(Default)]
struct Parts {
    key: Vec<u8>,
    operator: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Parts {
    fn read(text: &[u8]) -> Parts {
        let mut parts = Parts::default();
        let Ok((key, rest)) = quoted(text.trim_ascii_start()) else { return parts };
        parts.key = key;
        let Some((b')', rest)) = rest.split_first() else { return parts };
        if !rest.first().is_some_and(u8::is_ascii_whitespace) {
            return parts;
        }
        let rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        if end == 0 {
            return parts;
        }
        parts.operator = rest[..end].to_vec();
        parts.value = quoted(rest[end..].trim_ascii_start()).ok().map(|(value, _)| value);
        parts
    }
}

/// Returns the failure for a line of a transaction that is not valid.
pub(crate) fn invalid(text: impl std::fmt::Display) -> Failure {
    Failure::new(Failure::INVALID_INPUT, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(i32, i32, String, TargetUnion), Failure> {
        let c = comparison(line.as_bytes())?;
        Ok((c.target, c.result, String::from_utf8_lossy(&c.key).into_owned(), c.target_union.unwrap()))
    }

    #[test]
    fn every_target_and_operator_is_read() {
        assert_eq!(read(r#"mod("k") > "0""#), Ok((2, 1, "k".into(), TargetUnion::ModRevision(0))));
        assert_eq!(read(r#"m("k") = "7" and more"#), Ok((2, 0, "k".into(), TargetUnion::ModRevision(7))));
        assert_eq!(
            read(r#"create("a b") < "-1""#),
            Ok((1, 2, "a b".into(), TargetUnion::CreateRevision(-1)))
        );
        assert_eq!(read(r#"c("k") != "0""#), Ok((1, 3, "k".into(), TargetUnion::CreateRevision(0))));
        assert_eq!(read(r#"ver("k")  =  "1""#), Ok((0, 0, "k".into(), TargetUnion::Version(1))));
        assert_eq!(read(r#"version( "k") = "+1""#), Ok((0, 0, "k".into(), TargetUnion::Version(1))));
        assert_eq!(
            read(r#"value("\x6b") = "v\n""#),
            Ok((3, 0, "k".into(), TargetUnion::Value("v\n".into())))
        );
        assert_eq!(read("val(`k`) < `v`"), Ok((3, 2, "k".into(), TargetUnion::Value("v".into()))));
        assert_eq!(
            read(r#"lease("k") = "2be7547fbc6a5afa""#).unwrap().3,
            TargetUnion::Lease(0x2be7547fbc6a5afa)
        );
    }

    #[test]
    fn what_is_wrong_is_said_as_etcdctl_says_it() {
        let wrong = |line: &str| read(line).unwrap_err().to_string();
        assert_eq!(wrong("foo"), "malformed comparison: foo");
        assert_eq!(wrong("mod(k) = 1"), r#"malformed comparison: mod(k) = 1; got mod("")  """#);
        assert_eq!(wrong(r#"mod("k" = "1""#), r#"malformed comparison: mod("k" = "1"; got mod("k")  """#);
        assert_eq!(wrong(r#"mod("k") ="1""#), r#"malformed comparison: mod("k") ="1"; got mod("k") ="1" """#);
        assert_eq!(wrong(r#"mod("k")= "1""#), r#"malformed comparison: mod("k")= "1"; got mod("k")  """#);
        assert_eq!(wrong(r#"mod("k") = 1"#), r#"malformed comparison: mod("k") = 1; got mod("k") = """#);
        assert_eq!(wrong(r#"mod("k") = "x""#), r#"invalid txn compare request: mod("k") = "x""#);
        assert_eq!(wrong(r#"x("k") = "1""#), r#"malformed comparison: x("k") = "1" (unknown target x)"#);
        assert_eq!(
            wrong(r#"mod("k") == "1""#),
            r#"malformed comparison: mod("k") == "1" (unknown operator ==; use =, !=, < or >)"#
        );
    }
}
