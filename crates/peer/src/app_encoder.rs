use api::raftpb::Message;

use crate::frame_buffer::FrameBuffer;

/// Frame type of a link heartbeat.
pub(crate) const LINK_HEARTBEAT: u8 = 0;
/// Frame type of a MsgApp that is sent in short form: its entries directly follow those sent before, in the
/// same term.
pub(crate) const APP_ENTRIES: u8 = 1;
/// Frame type of a whole message.
pub(crate) const APP: u8 = 2;

/// Encodes MsgApp messages for etcd's `msgappv2` streams, which omit fields that the reader can derive from
/// earlier frames.
///
/// For this purpose both ends of a stream track the raft term and the log index of the last entry sent.
#[derive(Debug, Default)]
pub(crate) struct AppEncoder {
    term: u64,
    index: u64,
}

impl AppEncoder {
    pub(crate) fn encode_heartbeat(&self, into: &mut FrameBuffer) {
        into.put_u8(LINK_HEARTBEAT);
    }

    pub(crate) fn encode(&mut self, message: Message, into: &mut FrameBuffer) {
        let (term, index) = (message.term.unwrap_or(0), message.index.unwrap_or(0));
        let follows = self.index == index && self.term == message.log_term.unwrap_or(0) && self.term == term;
        // The short form has no space for further fields. If one is set, such as the hint with which a leader
        // marks a probe, the whole message is sent, so that the field is not lost.
        let is_plain = message.context.is_none()
            && message.responses.is_empty()
            && message.snapshot.is_none()
            && message.reject_hint.unwrap_or(0) == 0;
        if follows && is_plain {
            into.put_u8(APP_ENTRIES);
            into.put_u64(message.entries.len() as u64);
            self.index = self.index.wrapping_add(message.entries.len() as u64);
            for entry in message.entries {
                into.put_sized_entry(entry);
            }
            into.put_u64(message.commit.unwrap_or(0));
            return;
        }
        self.term = term;
        self.index = message.entries.last().map_or(index, |last| last.index.unwrap_or(0));
        into.put_u8(APP);
        into.put_sized_message(message);
    }
}
