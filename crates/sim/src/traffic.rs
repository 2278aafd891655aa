//! Carries the traffic between members: messages, requests and snapshots, and keeps track of the connections
//! for them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use api::raftpb::{Message, MessageType};
use bytes::Bytes;
use numbers::{Index, Term};
use peer::{ExchangeError, Handler as _, RequestError, Target};
use prost::Message as _;
use replica::observing::OBSERVERS;

use crate::links::{self, Outgoing};
use crate::member::{Done, Piece, Pieces, Reply, Sending};
use crate::network::{Host, Passage, SILENCE_MAX};
use crate::profile::Fault;
use crate::schedule::{MICRO, MILLI, SECOND};
use crate::world::{CONNECTIONS_EVERY, Event, World};

/// Number of bytes of a snapshot that a link transfers within its mean delay.
const PIECE_BYTES: u64 = 64 << 10;

impl World {
    pub(crate) fn done(&mut self, at: Host, done: Done) {
        match done {
            Done::Call(caller, operation, heard) => {
                if let Some(process) = &mut self.places[at].process {
                    process.calls.retain(|call| *call != (caller, operation));
                }
                self.tell(at, caller, operation, heard);
            }
            Done::Served(from, reply, response) => self.respond(at, from, reply, Ok(response)),
            Done::Stream(watcher, streams) => {
                if let Some(process) = &mut self.places[at].process {
                    process.streams.retain(|stream| *stream != (watcher, streams));
                }
                if self.watchers[watcher].streams == streams {
                    let now = self.now();
                    // Responses that the member sent before it closed the stream arrive before the close, so
                    // the watcher reads them first.
                    self.watchers[watcher].read(now, true);
                    self.watchers[watcher].broken(now);
                    let delay = self.watchers[watcher].rng().below(SECOND);
                    self.schedule.after(delay, Event::WatchConnect(watcher));
                }
            }
            Done::Received(from, outcome) => {
                let to = self.places[at].id;
                let delivered = outcome.is_ok();
                let now = self.now();
                self.trace
                    .note(now, format_args!("m{at} has received a snapshot of m{}: {outcome:?}", from.0));
                self.counts.snapshots += u64::from(delivered);
                // If the network loses the response, the sender waits until its timeout and then treats the
                // transfer as failed.
                let delay = match self.network.pass(at, from.0, 2, now, &mut self.dice.network) {
                    Passage::At(when) | Passage::Twice(when, _) => when,
                    Passage::Lost => now + 4 * SILENCE_MAX,
                };
                let delivered = delivered && delay < now + 4 * SILENCE_MAX;
                self.schedule.at(delay, Event::SnapshotEnded { from, to, delivered });
            }
        }
    }

    pub(crate) fn send(&mut self, at: Host, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Messages(messages) => self.send_messages(at, messages),
            Outgoing::Snapshot(message, source) => {
                let to = message.to();
                let Some(process) = &mut self.places[at].process else { return };
                let from = (at, process.life);
                let place = process.links.place_of(to);
                let busy = process.sending.iter().any(|sending| sending.to == to);
                let Some(place) = place.filter(|_| !busy) else {
                    self.schedule.after(MICRO, Event::SnapshotEnded { from, to, delivered: false });
                    return;
                };
                process.snapshots += 1;
                let number = process.snapshots;
                let source = Some(source);
                process.sending.push(Sending { number, to, message, source, pieces: None, sent: Vec::new() });
                let mut request = http::Request::new(Bytes::new());
                *request.uri_mut() = http::Uri::from_static("/mainstay/snapshot?format=2");
                self.ask(from, Some(place), request, Reply::Snapshot(number), Duration::from_secs(5));
            }
            Outgoing::Request { target, request, timeout, answer } => {
                let Some(process) = &self.places[at].process else { return };
                let from = (at, process.life);
                let to = match &target {
                    Target::Member(id) => process.links.place_of(*id),
                    Target::Url(url) => links::place_of(url),
                };
                self.ask(from, to, request, Reply::Task(Rc::new(RefCell::new(Some(answer)))), timeout);
            }
        }
    }

    pub(crate) fn send_messages(&mut self, at: Host, messages: Vec<Message>) {
        let now = self.now();
        let mut batches: Vec<(u64, u8, Vec<Message>)> = Vec::new();
        for message in messages {
            let checked = self.check_message_of_observer(at, &message);
            if let Err(why) = checked.and_then(|()| self.promise(at, &message)) {
                return self.fail(why);
            }
            let lane = u8::from(message.r#type() == MessageType::MsgApp);
            let to = message.to();
            match batches.iter_mut().find(|(id, kind, _)| (*id, *kind) == (to, lane)) {
                Some((_, _, batch)) => batch.push(message),
                None => batches.push((to, lane, vec![message])),
            }
        }
        for (id, lane, messages) in batches {
            let Some(process) = &self.places[at].process else { return };
            let life = process.life;
            let Some(to) = process.links.place_of(id) else { continue };
            if !process.links.is_active(id) {
                self.schedule.after(MILLI, Event::Unreachable(at, life, id));
                // Try to open a connection for the message. In the phase with faults half of the attempts
                // fail; the message is then lost.
                if !self.network.connects(at, to) || self.chaos && self.dice.network.one_in(2) {
                    continue;
                }
            }
            let connection = self.network.connection(at, to);
            match self.network.pass(at, to, lane, now, &mut self.dice.network) {
                Passage::Lost => {}
                Passage::At(when) => {
                    self.schedule.at(when, Event::Messages { from: at, to, id, connection, messages });
                }
                Passage::Twice(when, again) => {
                    // A connection delivers a message at most once. But raft tolerates duplicates, so some
                    // messages are delivered twice to test this. Forwarded proposals are left out, because a
                    // member may not tolerate duplicates of them.
                    let mut copy = messages.clone();
                    copy.retain(|message| message.r#type() != MessageType::MsgProp);
                    self.schedule.at(when, Event::Messages { from: at, to, id, connection, messages });
                    self.schedule.at(again, Event::Messages { from: at, to, id, connection, messages: copy });
                }
            }
            let breaking = self.network.weather.breaking;
            if breaking > 0 && self.dice.network.per_mille(breaking) {
                // The in-flight messages are lost, and the sender is informed of the break.
                self.network.break_off(at, to);
                let Some(process) = &self.places[at].process else { return };
                process.links.disconnected(id);
                self.schedule.after(MILLI, Event::Unreachable(at, life, id));
            }
        }
    }

    /// Checks that everything that a message acknowledges as stored (entries or a vote) is already durable on
    /// its sender.
    pub(crate) fn promise(&mut self, at: Host, message: &Message) -> Result<(), String> {
        let vote = match message.r#type() {
            MessageType::MsgVoteResp if !message.reject() => Some(message.to()),
            MessageType::MsgVote => Some(message.from()),
            _ => None,
        };
        if let Some(candidate) = vote {
            self.checks.votes(message.from(), Term(message.term()), candidate)?;
        }
        let stored = match message.r#type() {
            MessageType::MsgAppResp if !message.reject() => Some(Index(message.index())),
            MessageType::MsgVoteResp if !message.reject() => None,
            MessageType::MsgVote => None,
            _ => return Ok(()),
        };
        self.checks.promises(at, Term(message.term()), stored)
    }

    pub(crate) fn messages(
        &mut self,
        from: Host,
        to: Host,
        id: u64,
        connection: u64,
        mut messages: Vec<Message>,
    ) {
        let now = self.now();
        if connection != self.network.connection(from, to) {
            return;
        }
        let (sender, life) =
            self.places[from].process.as_ref().map_or((0, 0), |process| (process.id, process.life));
        if self.network.is_cut(from, to) {
            return;
        }
        let Some(process) = self.wake(to, 0) else { return };
        if process.id != id {
            return;
        }
        if sender != 0 && process.stepped.peering().is_removed(sender) {
            self.schedule.after(MILLI, Event::Removed(from, life, id));
            return;
        }
        if sender != 0 {
            process.links.heard_of(sender, from);
        }
        // Each message is encoded and decoded as for a real connection, so that members share no memory.
        for message in &mut messages {
            if let Ok(copy) = Message::decode(message.encode_to_vec().as_slice()) {
                *message = copy;
            }
        }
        self.note_answers(to, sender, &messages);
        let Some(process) = self.wake(to, 0) else { return };
        let kind = messages.first().map_or(0, |message| message.r#type() as u64);
        let count = messages.len() as u64;
        process.stepped.peering().received(&mut messages);
        self.trace.event(now, 6, &[from as u64, to as u64, kind, count]);
        self.settle(to);
    }

    pub(crate) fn ask(
        &mut self,
        from: (Host, u64),
        to: Option<Host>,
        request: http::Request<Bytes>,
        reply: Reply,
        timeout: Duration,
    ) {
        let now = self.now();
        let failed = |error| Err(RequestError::Failed { to: "a member".to_owned(), error });
        let late = failed(ExchangeError::TimedOut(timeout));
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(SECOND);
        self.schedule.at(now + timeout, Event::Answered { from, reply: reply.clone(), answer: late });
        let passage = to.map(|to| (to, self.network.pass(from.0, to, 2, now, &mut self.dice.network)));
        match passage {
            None => {
                let answer = Err(RequestError::UnknownMember(0));
                self.schedule.after(MICRO, Event::Answered { from, reply, answer });
            }
            Some((to, Passage::At(when) | Passage::Twice(when, _))) => {
                self.schedule.at(when, Event::Request { from, to, request, reply });
            }
            Some((_, Passage::Lost)) => {}
        }
    }

    pub(crate) fn request(
        &mut self,
        from: (Host, u64),
        to: Host,
        request: http::Request<Bytes>,
        reply: Reply,
    ) {
        let now = self.now();
        self.trace.event(now, 7, &[from.0 as u64, to as u64]);
        let is_etcd = self.profile.is_etcd(to);
        let Some(process) = self.wake(to, 0) else {
            let error = ExchangeError::Connect(io::ErrorKind::ConnectionRefused.into());
            let failed = RequestError::Failed { to: "a member".to_owned(), error };
            self.respond(to, from, reply, Err(failed));
            return;
        };
        if is_etcd && request.uri().path() == OBSERVERS {
            let mut not_found = http::Response::new(Bytes::new());
            *not_found.status_mut() = http::StatusCode::NOT_FOUND;
            self.respond(to, from, reply, Ok(not_found));
            return;
        }
        let done = Rc::clone(&process.done);
        let future = process.stepped.peering().http(request);
        process.stepped.spawn(async move {
            let response = future.await;
            done.borrow_mut().push(Done::Served(from, reply, response));
        });
        self.settle(to);
    }

    pub(crate) fn respond(
        &mut self,
        at: Host,
        from: (Host, u64),
        reply: Reply,
        answer: Result<http::Response<Bytes>, RequestError>,
    ) {
        let now = self.now();
        if let Passage::At(when) | Passage::Twice(when, _) =
            self.network.pass(at, from.0, 2, now, &mut self.dice.network)
        {
            self.schedule.at(when, Event::Answered { from, reply, answer });
        }
    }

    pub(crate) fn answered(
        &mut self,
        (at, life): (Host, u64),
        reply: Reply,
        answer: Result<http::Response<Bytes>, RequestError>,
    ) {
        let now = self.now();
        match reply {
            Reply::Task(waiting) => {
                let Some(sender) = waiting.borrow_mut().take() else { return };
                if self.wake(at, life).is_some() {
                    // Sending fails if the task that waits for the response was dropped; then the response is
                    // not needed.
                    let _ = sender.send(answer);
                    self.trace.event(now, 8, &[at as u64]);
                    self.settle(at);
                }
            }
            Reply::Snapshot(number) => {
                let Some(process) = self.wake(at, life) else { return };
                let Some(sending) = process.sending.iter_mut().find(|sending| sending.number == number)
                else {
                    return;
                };
                let Some(source) = sending.source.take() else { return };
                let receiver = answer.ok().filter(|answer| answer.status() == http::StatusCode::OK);
                sending.pieces = Some(Pieces::open(source, receiver));
                self.schedule.after(MICRO, Event::Piece(at, life, number));
            }
        }
    }

    pub(crate) fn connections(&mut self) {
        self.schedule.after(CONNECTIONS_EVERY, Event::Connections);
        let now = self.now();
        for at in 0..self.places.len() {
            if self.paused(at).is_some() {
                continue;
            }
            let Some(process) = &self.places[at].process else { continue };
            let life = process.life;
            // The log may also lack space although the disk is large, if it could not create a segment for
            // another reason.
            let lacks_space = self.profile.fails(Fault::Full) || process.stepped.log_lacks_space();
            let (mut refused, mut removed_by) = (Vec::new(), None);
            for (id, place) in process.links.members() {
                let there = self.places.get(place).and_then(|place| place.process.as_ref());
                let alive = there.is_some_and(|process| process.id == id);
                match self.network.cut_since(at, place) {
                    // A member that knows of this process's removal refuses its stream.
                    None if there.is_some_and(|there| {
                        alive && there.stepped.is_ready() && there.stepped.peering().is_removed(process.id)
                    }) =>
                    {
                        removed_by = Some(id);
                    }
                    None if alive => process.links.connected(id, self.places[at].hand.now()),
                    None => {
                        process.links.disconnected(id);
                        if there.is_none() && self.dice.network.one_in(3) {
                            refused.push(id);
                        }
                    }
                    Some(since) if now > since + SILENCE_MAX => process.links.disconnected(id),
                    Some(_) => {}
                }
            }
            if let Some(by) = removed_by {
                self.schedule.after(MILLI, Event::Removed(at, life, by));
            }
            if refused.is_empty() && !lacks_space {
                continue;
            }
            let Some(process) = self.wake(at, life) else { continue };
            for id in refused {
                process.stepped.peering().refused(id);
            }
            if lacks_space && !process.log_busy {
                // A log that lacks space is run now and then, so that it checks whether there is space again.
                process.log_busy = true;
                self.schedule.after(MICRO, Event::Log(at, life));
            }
            self.settle(at);
        }
    }

    pub(crate) fn piece(&mut self, at: Host, life: u64, number: u64) {
        let now = self.now();
        let breaks = self.profile.fails(Fault::Break) && self.chaos && self.dice.network.one_in(4);
        let mean = self.profile.delay;
        let dark = self.places[at].disk.is_dark();
        if self.wake(at, life).is_none() {
            return;
        }
        let Some(process) = &mut self.places[at].process else { return };
        let Some(sending) = process.sending.iter_mut().find(|sending| sending.number == number) else {
            return;
        };
        let to = sending.to;
        let Some(place) = process.links.place_of(to) else {
            self.schedule.after(MICRO, Event::SnapshotEnded { from: (at, life), to, delivered: false });
            return;
        };
        let Some(pieces) = &mut sending.pieces else { return };
        let cut = self.network.is_cut(at, place) || dark;
        let piece = if breaks || cut {
            Piece::Next(Err(std::io::Error::other("the connection broke")))
        } else {
            pieces.read()
        };
        let whole = match piece {
            Piece::Next(Ok(bytes)) => {
                let delay = mean * (1 + bytes.len() as u64 / PIECE_BYTES);
                sending.sent.push(Ok(bytes));
                self.schedule.after(delay, Event::Piece(at, life, number));
                return;
            }
            Piece::Next(Err(error)) => {
                // A feeder that does not lead may install a snapshot while it sends one.
                let expected = self.profile.reads_fail() || self.profile.observers > 0;
                if !(expected || breaks || cut) {
                    return self.fail(format!("member {at} cannot read the state that it sends: {error}"));
                }
                sending.sent.push(Err(error));
                false
            }
            Piece::End => true,
            Piece::Failed(why) => {
                self.trace.note(now, format_args!("m{at} cannot send a snapshot: {why}"));
                self.schedule.after(MICRO, Event::SnapshotEnded { from: (at, life), to, delivered: false });
                return;
            }
        };
        let pieces = std::mem::take(&mut sending.sent);
        let message = sending.message.clone();
        sending.pieces = None;
        self.trace.note(
            now,
            format_args!("m{at} has sent {} pieces of a snapshot to m{place}, whole: {whole}", pieces.len()),
        );
        self.counts.snapshots_broken += u64::from(!whole);
        let event = Event::Snapshot { from: (at, life), number, to: place, message, pieces };
        match self.network.pass(at, place, 3, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) => self.schedule.at(when, event),
            Passage::Lost => {
                let ended = Event::SnapshotEnded { from: (at, life), to, delivered: false };
                self.schedule.after(SILENCE_MAX, ended);
            }
        }
        if breaks && self.dice.network.one_in(3) {
            // In some cases the transfer broke because its sender crashed; another member may then send the
            // snapshot.
            self.crash(at, false);
        }
    }

    pub(crate) fn snapshot(
        &mut self,
        from: (Host, u64),
        number: u64,
        to: Host,
        message: Message,
        pieces: Vec<std::io::Result<Bytes>>,
    ) {
        let now = self.now();
        self.trace.event(now, 9, &[from.0 as u64, to as u64, number, pieces.len() as u64]);
        let wanted = message.to();
        let Some(process) = self.wake(to, 0).filter(|process| process.id == wanted) else {
            self.schedule.after(MILLI, Event::SnapshotEnded { from, to: wanted, delivered: false });
            return;
        };
        process.links.heard_of(message.from(), from.0);
        let done = Rc::clone(&process.done);
        let future = process.stepped.receive_snapshot(message, pieces);
        process.stepped.spawn(async move {
            let outcome = future.await;
            done.borrow_mut().push(Done::Received(from, outcome));
        });
        self.settle(to);
    }
}
