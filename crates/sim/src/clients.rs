//! Delivers the calls and watch streams of clients to members, and the responses back to the clients.

use std::rc::Rc;

use api::Rpc;
use numbers::LeaseId;
use oracle::Outcome;
use server::stepped::Stepped;

use crate::faults::DRIFT_MAX_PPM;
use crate::forgery::Known;
use crate::member::{Caller, Done, Heard, Place};
use crate::network::{CLIENTS, Host, Passage, SILENCE_MAX};
use crate::profile::{Fault, Work};
use crate::schedule::{MICRO, MILLI, Nanos, SECOND};
use crate::watchers::{Incoming, Returning};
use crate::world::{Calling, Event, Underway, World};

/// Reason recorded for an operation whose response nests too deep for the simulator to decode.
pub(crate) const TOO_DEEP: &str = "too deep";
/// Time that a client waits for a response.
pub(crate) const PATIENCE: Nanos = 8 * SECOND;

/// Converts a response into the outcome that the client records; `None` if the response cannot be decoded.
fn outcome(request: &oracle::Request, heard: Heard) -> Option<Outcome> {
    Some(match heard {
        Heard::Answer(Ok(message)) => match crate::wire::decode(request, message) {
            Some((header, response)) => Outcome::Done(header, response),
            // The simulator's own decoder also limits nesting, and the response nests as deep as the request.
            // So the result is unknown, which is not a violation.
            None if crate::workload::is_deep(request) => Outcome::Unknown(TOO_DEEP.to_owned()),
            None => return None,
        },
        Heard::Renewal(Ok(ttl)) => {
            Outcome::Done(oracle::Header::default(), oracle::Response::Renewed { ttl: ttl.0 })
        }
        Heard::Answer(Err(status)) | Heard::Renewal(Err(status)) => crate::wire::failed(&status),
        Heard::Nobody => Outcome::Refused(oracle::Refusal::Other("connection refused".to_owned())),
        Heard::Broken => Outcome::Unknown("no answer".to_owned()),
    })
}

fn print(now: Nanos, record: &oracle::Operation) {
    println!(
        "{:4}.{:06}   client {} at m{}: {} -> {}",
        now / SECOND,
        now / MICRO % 1_000_000,
        record.client,
        record.member - 1,
        crate::text::request(&record.request),
        crate::text::outcome(&record.outcome)
    );
}

/// Metadata of a serializable read that bounds its staleness.
const MAX_STALENESS: &str = "mainstay-max-staleness-ms";

/// Serializable reads with a bound on their staleness.
impl World {
    /// Draws the bound that a client sets for a serializable read: none in some cases. No bound is set if clocks
    /// may stand still or jump, because a server measures the time by its own clock.
    fn staleness_of(&mut self, request: &oracle::Request) -> Option<u64> {
        let is_serializable = matches!(request, oracle::Request::Range(range) if range.serializable);
        let measures = !(self.profile.fails(Fault::Suspend) || self.profile.fails(Fault::Jump));
        (is_serializable && measures && self.profile.observers > 0 && !self.dice.observers.one_in(4))
            .then(|| self.dice.observers.pick(&[0, 5, 5, 20, 20, 100, 500]))
    }

    /// Handles the arrival of a client's call at a member: finds the lowest revision that the bound of its read
    /// allows. Returns the bound as the call's metadata has it.
    fn bounds_staleness(&mut self, caller: Caller, operation: u64) -> Option<String> {
        let Caller::Client(number) = caller else { return None };
        let now = self.now();
        let underway =
            self.desks[number].open.as_mut().filter(|underway| underway.operation.id == operation)?;
        let ms = underway.staleness_ms?;
        // The clock of the server may be slow.
        let drift = 1_000_000 + 2 * u64::try_from(DRIFT_MAX_PPM).unwrap_or(0);
        let by = now.saturating_sub(ms * MILLI / 1_000_000 * drift);
        underway.floor = self.told_revisions.range(..by).next_back().map_or(0, |(_, revision)| *revision);
        Some(ms.to_string())
    }

    /// Checks after a turn of a member or observer that its state contains what it claims to contain: every
    /// revision that clients had been told before a certain time. Not checked if its clock may be wrong.
    pub(crate) fn look_at_freshness(&mut self, at: Host) {
        if Some(at) == self.profile.witness() {
            // It answers no reads.
            return;
        }
        let wrong_clocks = [Fault::Suspend, Fault::Jump, Fault::Drift];
        let place = &self.places[at];
        let Some(process) = &place.process else { return };
        let Some(as_of) = process.stepped.confirmed_as_of() else { return };
        if wrong_clocks.iter().any(|fault| self.profile.fails(*fault)) {
            return;
        }
        let age = place.hand.now().saturating_duration_since(as_of).as_nanos();
        let as_of = self.now().saturating_sub(Nanos::try_from(age).unwrap_or(Nanos::MAX));
        let Some((told_at, told)) = self.told_revisions.range(..as_of).next_back() else { return };
        let revision = process.stepped.published().view.snapshot().current_revision().0;
        if revision < *told {
            self.fail(format!(
                "member {at} claims that its state, revision {revision}, contains what was acknowledged before {as_of} \
                 ns, but a client was told revision {told} at {told_at} ns"
            ));
        }
    }

    /// Records that a client has been told this revision.
    fn told_revision(&mut self, revision: i64) {
        let newest = self.told_revisions.last_key_value().map_or(0, |(_, revision)| *revision);
        if revision > newest {
            self.told_revisions.insert(self.schedule.now(), revision);
        }
    }
}

impl World {
    pub(crate) fn running(&self) -> Vec<Host> {
        let runs = self.places.iter().filter(|place| place.process.is_some()).map(|place| place.number);
        runs.filter(|at| Some(*at) != self.profile.witness()).collect()
    }

    pub(crate) fn client_next(&mut self, number: usize) {
        let now = self.now();
        let members: Vec<Host> = self
            .places
            .iter()
            .filter(|place| !place.retired && place.lives > 0)
            .map(|place| place.number)
            .filter(|at| Some(*at) != self.profile.witness())
            .collect();
        let running = self.running();
        let desk = &mut self.desks[number];
        if desk.login.is_some() {
            return;
        }
        if desk.open.is_some() || !self.working || members.is_empty() {
            if self.working {
                self.schedule.after(100 * MILLI, Event::ClientNext(number));
            }
            return;
        }
        let rng = desk.client.rng();
        if rng.one_in(4) || !desk.answered {
            // Most clients choose a running member, because a client with several endpoints finds one
            // quickly.
            let from = if running.is_empty() || rng.one_in(8) { &members } else { &running };
            desk.place = rng.pick(from);
        }
        let place = desk.place;
        if self.client_logs_in(number, place) {
            return;
        }
        let profile = &self.profile;
        let desk = &mut self.desks[number];
        desk.client.known = match &self.places[desk.place].process {
            Some(process) if profile.works(Work::Forged) => {
                Some(Known::of(process.stepped.identity(), &self.places[desk.place].disk))
            }
            _ => None,
        };
        let (request, fence) = desk.client.next(profile, now);
        let revoked = desk.client.revokes_first.take();
        let place = desk.place;
        if let Some(id) = revoked {
            self.extra(oracle::Request::Revoke { id }, place);
            self.hold_up_regrant();
        }
        self.next_operation += 1;
        let id = self.next_operation;
        let calling = Calling::of(&request);
        let staleness_ms = self.staleness_of(&request);
        let desk = &mut self.desks[number];
        desk.open = Some(Underway {
            operation: oracle::Operation {
                id,
                client: desk.client.number,
                member: place as u64 + 1,
                life: 0,
                call: now,
                returned: 0,
                request,
                outcome: Outcome::Unknown(String::new()),
                fence,
            },
            staleness_ms,
            floor: 0,
        });
        self.counts.operations += 1;
        self.asks(number, id);
        self.place_call(Caller::Client(number), id, place, calling, PATIENCE);
    }

    /// Sends a call to a member, and schedules the time at which the caller stops waiting.
    pub(crate) fn place_call(
        &mut self,
        caller: Caller,
        operation: u64,
        to: Host,
        request: Calling,
        patience: Nanos,
    ) {
        let now = self.now();
        self.schedule.after(patience, Event::GiveUp { caller, operation });
        let lost = self.profile.fails(Fault::ClientLoss) && self.chaos && self.dice.network.one_in(50);
        match self.network.pass(CLIENTS, to, 0, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) if !lost => {
                self.schedule.at(when, Event::Call { caller, operation, to, request });
            }
            _ => {}
        }
    }

    pub(crate) fn call(&mut self, caller: Caller, operation: u64, to: Host, request: Calling) {
        let now = self.now();
        let token = self.token_of(caller);
        let staleness_ms = self.bounds_staleness(caller, operation);
        let Some(process) =
            self.wake(to, 0).filter(|process| process.stepped.is_ready() && !process.stopping)
        else {
            self.tell(to, caller, operation, Heard::Nobody);
            return;
        };
        process.calls.push((caller, operation));
        let head = |stepped: &Stepped, rpc| {
            let mut head = stepped.head(rpc);
            if let Some(token) = token.as_ref() {
                head.metadata.insert("authorization", token);
            }
            if let Some(ms) = &staleness_ms {
                head.metadata.insert(MAX_STALENESS, ms);
            }
            head
        };
        let done = Rc::clone(&process.done);
        let life = process.life;
        match request.clone() {
            Calling::Unary(rpc, message) => {
                let future = process.stepped.call_as(head(&process.stepped, rpc), message);
                process.stepped.spawn(async move {
                    let answer = future.await;
                    done.borrow_mut().push(Done::Call(caller, operation, Heard::Answer(answer)));
                });
            }
            Calling::Renew(lease) => {
                let future =
                    process.stepped.renew_by(&head(&process.stepped, Rpc::LeaseKeepAlive), LeaseId(lease));
                process.stepped.spawn(async move {
                    let answer = future.await;
                    done.borrow_mut().push(Done::Call(caller, operation, Heard::Renewal(answer)));
                });
            }
        }
        if let Caller::Client(number) = caller
            && let Some(underway) = &mut self.desks[number].open
            && underway.operation.id == operation
        {
            underway.operation.life = life;
        }
        self.trace.event(now, 10, &[operation, to as u64]);
        self.settle(to);
        self.lurk(to, &request);
    }

    /// Sends a member's response back to its caller, unless the network loses it.
    pub(crate) fn tell(&mut self, at: Host, caller: Caller, operation: u64, heard: Heard) {
        let now = self.now();
        let lost = self.profile.fails(Fault::ClientLoss) && self.chaos && self.dice.network.one_in(50);
        match self.network.pass(at, CLIENTS, 0, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) if !lost => {
                self.schedule.at(when, Event::Told { caller, operation, heard });
            }
            _ => {}
        }
    }

    pub(crate) fn told(&mut self, caller: Caller, operation: u64, heard: Heard) {
        let now = self.now();
        let number = match caller {
            Caller::Client(number) => number,
            Caller::Extra => return self.extra_told(operation, heard),
            Caller::Operator => return self.operator_told(operation, heard),
            Caller::Login(number) => return self.login_told(number, operation, heard),
            Caller::Administrator => return self.administrator_told(operation, heard),
            Caller::Crowd => return,
        };
        if let Heard::Answer(Err(status)) = &heard
            && self.is_unexpected(status)
        {
            return self.fail(format!("operation {operation} is refused for no reason: {status}"));
        }
        let desk = &mut self.desks[number];
        if desk.open.as_ref().is_none_or(|underway| underway.operation.id != operation) {
            return;
        }
        let Some(Underway { operation: mut record, floor, .. }) = desk.open.take() else { return };
        record.returned = now;
        let Some(outcome) = outcome(&record.request, heard) else {
            return self.fail(format!("the answer to operation {operation} cannot be read"));
        };
        record.outcome = outcome;
        let (kind, revision) = match &record.outcome {
            Outcome::Done(header, _) => (0, header.revision),
            Outcome::Refused(_) => (1, 0),
            Outcome::Unknown(_) => (2, 0),
        };
        if kind == 0 && revision < floor {
            return self.fail(format!(
                "operation {operation} is answered from revision {revision}, but the bound on its staleness requires \
                 {floor}"
            ));
        }
        desk.answered = kind == 0;
        if let Outcome::Refused(oracle::Refusal::Other(why)) = &record.outcome {
            self.client_refused(number, why);
        }
        self.told_revision(revision);
        let desk = &mut self.desks[number];
        self.counts.answered += u64::from(kind == 0);
        let is_observed = usize::try_from(record.member - 1).is_ok_and(|at| self.places[at].observes);
        self.counts.observed += u64::from(kind == 0 && is_observed);
        self.trace.event(now, 11, &[operation, kind, revision as u64]);
        if self.trace.prints() {
            print(now, &record);
        }
        desk.client.told(&record.request, &record.outcome, now);
        let think = desk.client.rng().around(self.profile.think);
        let refused = if kind == 0 { 0 } else { 50 * MILLI };
        let is_id_used_twice = self.is_id_used_twice(&record.request, &record.outcome);
        self.history.operations.push(record);
        if is_id_used_twice {
            return self
                .fail(format!("operation {operation} is refused a lease for an id that it did not ask for"));
        }
        let next = self.desks[number].client.next_at(now).unwrap_or(now + think);
        self.schedule.at(next + refused, Event::ClientNext(number));
    }

    /// If the profile has the fault `Stall` and the work `Regrant`, stalls the disks of all running members
    /// for a while, in half of the calls. The revocation of a lease and the new grant of its id then wait in
    /// the log together, while the old lease expires.
    fn hold_up_regrant(&mut self) {
        if !self.chaos || !self.profile.fails(Fault::Stall) || !self.profile.works(Work::Regrant) {
            return;
        }
        if self.dice.faults.one_in(2) {
            let until = self.now() + self.dice.faults.between(500 * MILLI, 1500 * MILLI);
            for at in self.running() {
                self.places[at].stalled_until = self.places[at].stalled_until.max(until);
            }
        }
    }

    fn extra_told(&mut self, operation: u64, heard: Heard) {
        let now = self.now();
        let Some(place) = self.extras.iter().position(|extra| extra.id == operation) else { return };
        let mut record = self.extras.swap_remove(place);
        record.returned = now;
        let Some(outcome) = outcome(&record.request, heard) else {
            return self.fail(format!("the answer to operation {operation} cannot be read"));
        };
        record.outcome = outcome;
        self.trace.event(now, 11, &[operation]);
        if self.trace.prints() {
            print(now, &record);
        }
        self.history.operations.push(record);
    }

    /// Returns true if a grant was refused because the id that the member itself chose for the lease is in
    /// use. Only a proposal that is carried out twice can cause this, which is allowed only if members behave
    /// like etcd.
    fn is_id_used_twice(&self, request: &oracle::Request, outcome: &Outcome) -> bool {
        let asks_for_any = matches!(request, oracle::Request::Grant { id: 0, .. });
        let is_refused = matches!(outcome, Outcome::Refused(oracle::Refusal::LeaseExists));
        asks_for_any && is_refused && !self.profile.fails(Fault::Etcd)
    }

    /// Returns true if a member reports an unreadable value although no disk in this world can fail to read.
    fn is_unexpected(&self, status: &api::Status) -> bool {
        let reads_fail = self.profile.reads_fail();
        status.message.contains("a value could not be read") && !reads_fail
    }

    pub(crate) fn newest(&self) -> i64 {
        self.desks.iter().map(|desk| desk.client.revision()).max().unwrap_or(1)
    }

    pub(crate) fn watch_connect(&mut self, number: usize) {
        let now = self.now();
        if self.watchers[number].is_open() {
            return;
        }
        let ready = |place: &&Place| {
            place.process.as_ref().is_some_and(|process| process.stepped.is_ready() && !process.stopping)
                && self.network.connects(CLIENTS, place.number)
        };
        let ready: Vec<Host> = self
            .places
            .iter()
            .filter(ready)
            .map(|place| place.number)
            .filter(|at| Some(*at) != self.profile.witness())
            .collect();
        if ready.is_empty() {
            self.schedule.after(200 * MILLI, Event::WatchConnect(number));
            return;
        }
        let newest = self.newest();
        let Some(token) = self.stream_token(number) else {
            self.schedule.after(200 * MILLI, Event::WatchConnect(number));
            return;
        };
        let before = self.next_watch;
        let watcher = &mut self.watchers[number];
        let at = watcher.rng().pick(&ready);
        let life = self.places[at].lives;
        let pipe = watcher.connect(at, life, &self.profile, newest, &mut self.next_watch, now);
        let asked = before + 1..=self.next_watch;
        let streams = watcher.streams;
        let needs_leader = watcher.rng().one_in(4);
        // A slow watcher that reconnects after the workload has ended reads as fast as all others, so that
        // the run can end.
        let pace = if self.working { watcher.pace } else { watcher.pace.min(20 * MILLI) };
        let Some(process) = self.wake(at, life) else { return };
        let done = Rc::clone(&process.done);
        let mut head = process.stepped.head(Rpc::Watch);
        head.requires_leader = needs_leader;
        if let Some(token) = token {
            head.metadata.insert("authorization", token);
        }
        let future = process.stepped.watch_by(
            &head,
            Incoming(Rc::clone(&pipe)),
            Returning(pipe),
            std::future::pending(),
        );
        process.streams.push((number, streams));
        process.stepped.spawn(async move {
            // The client sees a closed stream whether the call fails or not, so the result is not needed.
            let _ = future.await;
            done.borrow_mut().push(Done::Stream(number, streams));
        });
        self.watches_asked(number, asked);
        self.trace.event(now, 12, &[number as u64, at as u64]);
        self.settle(at);
        self.schedule.after(pace, Event::WatchRead(number, streams));
    }

    /// Makes every watcher read now, and lets more responses wait for its later reads. Otherwise a slow
    /// watcher's next read may be many seconds away, and the watcher would receive nothing until then.
    pub(crate) fn hurry_watchers(&mut self) {
        for (number, watcher) in self.watchers.iter_mut().enumerate().filter(|(_, watcher)| watcher.is_open())
        {
            watcher.widen();
            self.schedule.after(MICRO, Event::WatchRead(number, watcher.streams));
        }
    }

    pub(crate) fn watch_read(&mut self, number: usize, streams: u64) {
        let now = self.now();
        if self.watchers[number].streams != streams || !self.watchers[number].is_open() {
            return;
        }
        let at = self.watchers[number].place;
        // No data passes through a cut link, so after some silence the client gives up the stream.
        let cut = self.network.cut_since(CLIENTS, at).is_some_and(|since| now > since + SILENCE_MAX);
        let breaks =
            self.profile.fails(Fault::ClientLoss) && self.chaos && self.watchers[number].rng().one_in(200);
        if cut || breaks {
            self.watchers[number].broken(now);
            self.schedule.after(100 * MILLI, Event::WatchConnect(number));
        } else if self.network.connects(CLIENTS, at) {
            let all = !self.working;
            let watcher = &mut self.watchers[number];
            watcher.read(now, all);
            if !watcher.is_open() {
                self.schedule.after(100 * MILLI, Event::WatchConnect(number));
            }
        }
        if self.watchers[number].is_open() {
            let watcher = &mut self.watchers[number];
            let pace = if self.working { watcher.pace } else { watcher.pace.min(20 * MILLI) };
            let delay = watcher.rng().around(pace) + MICRO;
            self.schedule.after(delay, Event::WatchRead(number, streams));
        }
        self.trace.event(now, 13, &[number as u64]);
        if self.wake(at, 0).is_some() && self.paused(at).is_none() {
            self.settle(at);
        }
    }
}
