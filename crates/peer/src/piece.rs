use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Item of the channel on which a snapshot is passed between a thread and the network: a chunk of bytes, an
/// error, or the end. If the channel closes before [`Piece::End`], the snapshot is incomplete.
pub(crate) enum Piece {
    Bytes(Bytes),
    Failed(io::Error),
    End,
}

/// Iterator over the chunks of a snapshot that is being received. It blocks the thread until a chunk arrives.
pub(crate) struct Incoming {
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

impl Incoming {
    pub(crate) fn new(pieces: mpsc::Receiver<Piece>) -> Incoming {
        Incoming { pieces, ended: false }
    }
}

impl Iterator for Incoming {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            return None;
        }
        match self.pieces.blocking_recv() {
            Some(Piece::Bytes(bytes)) => Some(Ok(bytes)),
            Some(Piece::End) => {
                self.ended = true;
                None
            }
            Some(Piece::Failed(error)) => {
                self.ended = true;
                Some(Err(error))
            }
            None => {
                self.ended = true;
                Some(Err(broken_off()))
            }
        }
    }
}

pub(crate) fn broken_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the snapshot broke off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_marked_end_is_an_end() {
        let (give, pieces) = mpsc::channel(4);
        for piece in [Piece::Bytes("a".into()), Piece::End] {
            give.blocking_send(piece).unwrap_or_else(|_| panic!("there is room"));
        }
        let all: Vec<_> = Incoming::new(pieces).map(Result::unwrap).collect();
        assert_eq!(all, ["a"]);

        let (give, pieces) = mpsc::channel(4);
        drop(give);
        let mut incoming = Incoming::new(pieces);
        assert_eq!(incoming.next().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(incoming.next().is_none());
    }
}
