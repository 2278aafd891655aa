//! Decodes protobuf messages field by field, without copying them. [`api::wire`] encodes.

/// Iterates over the fields of a message.
pub(crate) struct Fields<'a>(pub &'a [u8]);

pub(crate) enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A field of fixed width, 32 or 64 bits. No message that is decoded here uses such fields.
    Fixed,
}

impl<'a> Fields<'a> {
    /// Returns the number and the contents of the next field; `None` at the end of the message, and `Err` if
    /// the bytes are not a field.
    pub fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, ()> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| ())?;
                Field::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return Err(()),
        };
        let number = tag >> 3;
        if number == 0 { Err(()) } else { Ok(Some((number, field))) }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ()> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(())?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ()> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(())?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(());
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(())
    }
}
