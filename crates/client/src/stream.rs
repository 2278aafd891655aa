use std::marker::PhantomData;

use api::Status;
use prost::Message;

use crate::call::{Receiver, Sender};
use crate::client::decode;

/// Open streaming call. Dropping the stream cancels the call, unless [`Stream::finish`] was called before.
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
    /// Returns the same errors as [`StreamSender::send`].
    pub async fn send(&mut self, request: &Req) -> Result<(), Status> {
        self.sender.send(request).await
    }

    /// Ends the stream of requests, as [`StreamSender::finish`] does.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Returns the next response as [`StreamReceiver::next`] does.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`StreamReceiver::next`].
    pub async fn next(&mut self) -> Result<Option<Resp>, Status> {
        self.receiver.next().await
    }

    /// Splits the stream into sender and receiver, which two tasks can use.
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
    /// Sends a request. If the server's flow-control window is too small, waits until the server extends it.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` for a request above the size limit. The end of the call is not an error
    /// here: the receiver returns the call's status.
    pub async fn send(&mut self, request: &Req) -> Result<(), Status> {
        self.sender.send(request.encode_to_vec().into()).await
    }

    /// Ends the stream of requests.
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
    /// Returns the next response, or `None` when the call ended with status OK. If the future is dropped, no
    /// response is lost; the method may be called again.
    ///
    /// # Errors
    /// Returns the status that the server sent, or `Unavailable` if the connection broke.
    pub async fn next(&mut self) -> Result<Option<Resp>, Status> {
        self.receiver.next().await?.map(|answer| decode(&answer)).transpose()
    }
}
