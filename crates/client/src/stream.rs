use std::marker::PhantomData;

use api::Status;
use prost::Message;

use crate::call::{Receiver, Sender};
use crate::client::decode;

/// An open streaming call. Dropping it cancels the call, unless its sending side was finished.
pub struct Stream<Req, Resp> {
    sender: StreamSender<Req>,
    receiver: StreamReceiver<Resp>,
}

impl<Req: Message, Resp: Message + Default> Stream<Req, Resp> {
    pub(crate) fn new(sender: Sender, receiver: Receiver) -> Stream<Req, Resp> {
        let sender = StreamSender { sender, request: PhantomData };
        Stream { sender, receiver: StreamReceiver { receiver, answer: PhantomData } }
    }

    /// Sends a request as [`StreamSender::send`] does.
    ///
    /// # Errors
    ///
    /// As [`StreamSender::send`].
    pub async fn send(&mut self, request: &Req) -> Result<(), Status> {
        self.sender.send(request).await
    }

    /// Ends the requests as [`StreamSender::finish`] does.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Returns the next response as [`StreamReceiver::next`] does.
    ///
    /// # Errors
    ///
    /// As [`StreamReceiver::next`].
    pub async fn next(&mut self) -> Result<Option<Resp>, Status> {
        self.receiver.next().await
    }

    /// Splits the stream into its two sides, for two tasks.
    pub fn split(self) -> (StreamSender<Req>, StreamReceiver<Resp>) {
        (self.sender, self.receiver)
    }
}

/// The sending side of a [`Stream`].
pub struct StreamSender<Req> {
    sender: Sender,
    request: PhantomData<fn(Req)>,
}

impl<Req: Message> StreamSender<Req> {
    /// Sends a request, as the server's window opens.
    ///
    /// # Errors
    /// `ResourceExhausted` for one above the limit. That the call is over is for the receiving side to say.
    pub async fn send(&mut self, request: &Req) -> Result<(), Status> {
        self.sender.send(request.encode_to_vec().into()).await
    }

    /// Says that no more requests come.
    pub fn finish(&mut self) {
        self.sender.finish();
    }
}

/// The receiving side of a [`Stream`].
pub struct StreamReceiver<Resp> {
    receiver: Receiver,
    answer: PhantomData<fn() -> Resp>,
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    /// The next answer; `None` when the call ended well. May be dropped and called again without loss.
    ///
    /// # Errors
    /// The server's status, or `Unavailable` for a connection that broke.
    pub async fn next(&mut self) -> Result<Option<Resp>, Status> {
        self.receiver.next().await?.map(|answer| decode(&answer)).transpose()
    }
}
