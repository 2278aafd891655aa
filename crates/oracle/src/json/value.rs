//! Numbers, texts, keys and values, lists of them, and objects.

use serde_json::Value;

/// Something that is a JSON value.
pub(super) trait Json: Sized {
    fn write(&self) -> Value;
    fn read(value: &Value) -> Result<Self, String>;
    /// What stands for an absent field.
    fn absent() -> Option<Self> {
        None
    }
}

pub(super) fn field<T: Json>(value: &Value, name: &str) -> Result<T, String> {
    match value.get(name) {
        Some(found) => T::read(found).map_err(|e| format!("{name}: {e}")),
        None => T::absent().ok_or_else(|| format!("{name} is missing")),
    }
}

/// The one field of an object that says which of several things it is.
pub(super) fn tagged(value: &Value) -> Result<(&str, &Value), String> {
    match value.as_object().and_then(|o| o.iter().next().filter(|_| o.len() == 1)) {
        Some((tag, inner)) => Ok((tag, inner)),
        None => Err(format!("{value} is not an object with one field")),
    }
}

/// An object without the fields that have their zero, so that lines stay short.
pub(super) fn object(fields: Vec<(&str, Value)>) -> Value {
    let zero = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_u64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        _ => false,
    };
    let kept = fields.into_iter().filter(|(_, value)| !zero(value));
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect())
}

macro_rules! number {
    ($($type:ty, $from:ident;)*) => {$(
        impl Json for $type {
            fn write(&self) -> Value {
                (*self).into()
            }
            fn read(value: &Value) -> Result<Self, String> {
                let number = value.$from().ok_or_else(|| format!("{value} is no number"))?;
                <$type>::try_from(number).map_err(|_| format!("{value} is too big"))
            }
            fn absent() -> Option<Self> {
                Some(0)
            }
        }
    )*};
}
number! { u64, as_u64; u32, as_u64; i64, as_i64; }

impl Json for bool {
    fn write(&self) -> Value {
        (*self).into()
    }
    fn read(value: &Value) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
    }
    fn absent() -> Option<bool> {
        Some(false)
    }
}

impl Json for String {
    fn write(&self) -> Value {
        self.as_str().into()
    }
    fn read(value: &Value) -> Result<String, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no string"))
    }
    fn absent() -> Option<String> {
        Some(String::new())
    }
}

/// Keys and values.
#[derive(Default)]
pub(super) struct Blob(Vec<u8>);

const HEX: &str = "hex:";

impl Json for Blob {
    fn write(&self) -> Value {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with(HEX) => text.into(),
            _ => {
                let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{HEX}{digits}").into()
            }
        }
    }
    fn read(value: &Value) -> Result<Blob, String> {
        let text = value.as_str().ok_or_else(|| format!("{value} is no string"))?;
        let Some(digits) = text.strip_prefix(HEX) else { return Ok(Blob(text.as_bytes().to_vec())) };
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Blob).ok_or_else(|| format!("{value} is no hexadecimal"))
    }
    fn absent() -> Option<Blob> {
        Some(Blob::default())
    }
}

pub(super) fn blob(bytes: &[u8]) -> Value {
    Blob(bytes.to_vec()).write()
}

pub(super) fn bytes(value: &Value, name: &str) -> Result<Vec<u8>, String> {
    field::<Blob>(value, name).map(|blob| blob.0)
}

pub(super) fn blobs(list: &[Vec<u8>]) -> Value {
    list.iter().map(|bytes| blob(bytes)).collect()
}

pub(super) fn all_bytes(value: &Value, name: &str) -> Result<Vec<Vec<u8>>, String> {
    Ok(field::<Vec<Blob>>(value, name)?.into_iter().map(|blob| blob.0).collect())
}

impl<T: Json> Json for Vec<T> {
    fn write(&self) -> Value {
        self.iter().map(Json::write).collect()
    }
    fn read(value: &Value) -> Result<Vec<T>, String> {
        let list = value.as_array().ok_or_else(|| format!("{value} is no list"))?;
        list.iter().map(T::read).collect()
    }
    fn absent() -> Option<Vec<T>> {
        Some(Vec::new())
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self) -> Value {
        self.as_ref().map_or(Value::Null, Json::write)
    }
    fn read(value: &Value) -> Result<Option<T>, String> {
        if value.is_null() { Ok(None) } else { T::read(value).map(Some) }
    }
    fn absent() -> Option<Option<T>> {
        Some(None)
    }
}
