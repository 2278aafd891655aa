use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Code, Status};
use cli::{Failure, Io, Matches};
use client::Client;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::globals::{COMMAND_TIMEOUT, DIAL_TIMEOUT, Globals};
use crate::printer::{Answer, Format, Page, Printer};
use crate::process::Interruption;

/// One run of one command: what it was asked, where it writes, and how it reaches the cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct Call(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) matches: Matches,
    pub(crate) io: Io,
    interruption: Option<Interruption>,
    globals: OnceCell<Globals>,
    /// Reasons, printed so far, why endpoints cannot be connected to; each is printed once.
    unreached: Mutex<HashSet<String>>,
}

impl std::ops::Deref for Call {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Standard output was closed: the reader needs no more, and there is nobody to tell.
fn unread(_: std::io::Error) -> Failure {
    Failure::said(Failure::ERROR)
}

impl Call {
    pub(crate) fn new(matches: Matches, io: Io, interruption: Option<Interruption>) -> Call {
        let (globals, unreached) = (OnceCell::new(), Mutex::default());
        Call(Arc::new(Parts { matches, io, interruption, globals, unreached }))
    }

    /// The flags that every command has. They are read when they are first needed, which is after a command has looked
    /// at its arguments: a wrong argument is told before a wrong flag, and before a password is asked for.
    ///
    /// # Errors
    /// As [`Globals::read`].
    pub(crate) async fn globals(&self) -> Result<&Globals, Failure> {
        self.globals.get_or_try_init(|| Globals::read(&self.matches, &self.io)).await
    }

    /// The output format; simple until [`Call::globals`] has taken the flag.
    pub(crate) fn printer(&self) -> Printer {
        let globals = self.globals.get();
        Printer {
            format: globals.map_or(Format::Simple, |globals| globals.format),
            hex: globals.is_some_and(|globals| globals.hex),
            value_only: false,
        }
    }

    /// Tells when the command is to end: the signals of the process, unless a test sends others. Those of the process have
    /// to be taken before another thread is started.
    pub(crate) fn interruption(&self) -> Interruption {
        self.interruption.clone().unwrap_or_else(Interruption::of_process)
    }

    /// The arguments.
    pub(crate) fn args(&self) -> &[Vec<u8>] {
        &self.matches.args
    }

    /// A client of the endpoints that were given or found. With a user it has authenticated.
    ///
    /// # Errors
    /// The output format or a file for TLS is wrong, or the user is refused.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let globals = self.globals().await?;
        globals.connect(globals.endpoints.clone()).await
    }

    /// Connects as [`Call::connect`] does, to this endpoint alone.
    ///
    /// # Errors
    ///
    /// As [`Call::connect`].
    pub(crate) async fn connect_to(&self, endpoint: &str) -> Result<Client, Failure> {
        self.globals().await?.connect(vec![endpoint.to_owned()]).await
    }

    /// Returns the end of `--command-timeout`, if it begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.matches.get(COMMAND_TIMEOUT)
    }

    /// Waits for this at most `--command-timeout`.
    ///
    /// # Errors
    /// Its own, or that the time is over.
    pub(crate) async fn limit<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        self.limit_at(self.deadline(), work).await
    }

    /// Limits as [`Call::limit`] does, up to a moment.
    ///
    /// # Errors
    ///
    /// As [`Call::limit`].
    pub(crate) async fn limit_at<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let outcome = match timeout_at(deadline, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
        };
        if outcome
            .as_ref()
            .is_err_and(|status| matches!(status.code, Code::DeadlineExceeded | Code::Unavailable))
        {
            self.tell_unreached(|_| true);
        }
        outcome
    }

    /// Says, as long as the command runs, why no endpoint can be connected to: a command without a time limit waits for one.
    pub(crate) async fn watch_unreached(&self) {
        let pause = self.matches.get(DIAL_TIMEOUT).max(Duration::from_millis(50));
        loop {
            tokio::time::sleep(pause).await;
            self.tell_unreached(|client| !client.is_connected());
        }
    }

    /// Says on standard error, once for each reason, why endpoints cannot be connected to.
    pub(crate) fn tell_unreached(&self, of: impl Fn(&Client) -> bool) {
        let Some(globals) = self.globals.get() else { return };
        for (endpoint, error) in
            globals.clients().iter().filter(|client| of(client)).flat_map(Client::dial_errors)
        {
            let line = format!("Warning: {endpoint}: {error}{}", hint(&error));
            if self.unreached.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
                self.warn(line);
            }
        }
    }

    /// Limits as [`Call::limit`] does, with the failure that ends a command.
    ///
    /// # Errors
    ///
    /// As [`Call::limit`].
    pub(crate) async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Failure> {
        Ok(self.limit(work).await?)
    }

    /// Prints an answer.
    ///
    /// # Errors
    /// The format cannot show it, or standard output is closed.
    pub(crate) fn show(&self, answer: &Answer<'_>) -> Result<(), Failure> {
        self.show_with(answer, false)
    }

    /// Shows as [`Call::show`] does, perhaps with values only.
    ///
    /// # Errors
    ///
    /// As [`Call::show`].
    pub(crate) fn show_with(&self, answer: &Answer<'_>, value_only: bool) -> Result<(), Failure> {
        let Page { out, err } = Printer { value_only, ..self.printer() }.page(answer)?;
        if !err.is_empty() {
            self.io.err.notice(err);
        }
        if out.is_empty() { Ok(()) } else { self.write(&out) }
    }

    /// Prints a line on standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn line(&self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.io.out.line(text).map_err(unread)
    }

    /// Prints on standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.io.out.write(bytes).map_err(unread)
    }

    /// Prints a line on standard error.
    pub(crate) fn warn(&self, text: impl AsRef<[u8]>) {
        // A reader that has closed the stream cannot be told.
        let _ = self.io.err.line(text);
    }
}

/// What a reason for having no connection may come from, where its text does not say it.
fn hint(error: &str) -> &'static str {
    if error.contains("InvalidContentType") {
        " (the server does not speak TLS at this port: http://, or another port)"
    } else if error.contains("EOF") || error.contains("connection reset by peer") {
        " (the server hangs up: it may speak TLS at this port (https://), or this is not the port for clients)"
    } else {
        ""
    }
}

/// An argument for a field that holds text.
///
/// # Errors
/// It is not UTF-8, which such a field cannot hold.
pub(crate) fn utf8(argument: &[u8]) -> Result<String, Failure> {
    std::str::from_utf8(argument).map(str::to_owned).map_err(|_| {
        let shown = cli::go::quote(argument);
        Failure::bad_args(format!("argument {shown} is not UTF-8"))
    })
}
