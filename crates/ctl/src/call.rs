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

/// One run of a command: the arguments, the streams, and the clients of the cluster that the command uses.
/// Clones share all of this.
#[derive(Clone)]
pub(crate) struct Call(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) matches: Matches,
    pub(crate) io: Io,
    interruption: Option<Interruption>,
    globals: OnceCell<Globals>,
    /// Connection errors that were printed already. Each is printed only once.
    unreached: Mutex<HashSet<String>>,
}

impl std::ops::Deref for Call {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Returns the failure for a closed standard output. It has no message, because a reader that closes the pipe
/// early, as in `etcdctl get … | head`, is no problem for the user.
fn unread(_: std::io::Error) -> Failure {
    Failure::said(Failure::ERROR)
}

impl Call {
    pub(crate) fn new(matches: Matches, io: Io, interruption: Option<Interruption>) -> Call {
        let (globals, unreached) = (OnceCell::new(), Mutex::default());
        Call(Arc::new(Parts { matches, io, interruption, globals, unreached }))
    }

    /// Returns the values of the global flags. The first call reads them. A command must make this call only
    /// after it has checked its arguments, so that a wrong argument is reported before a wrong flag, and
    /// before the user is asked for a password.
    ///
    /// # Errors
    /// Returns the errors of [`Globals::read`].
    pub(crate) async fn globals(&self) -> Result<&Globals, Failure> {
        self.globals.get_or_try_init(|| Globals::read(&self.matches, &self.io)).await
    }

    /// Returns the printer for the output format that the flags request. Before [`Call::globals`] has read
    /// the flags, returns the printer for the simple format.
    pub(crate) fn printer(&self) -> Printer {
        let globals = self.globals.get();
        Printer {
            format: globals.map_or(Format::Simple, |globals| globals.format),
            hex: globals.is_some_and(|globals| globals.hex),
            value_only: false,
        }
    }

    /// Returns the source of interruptions: the signals of the process, unless a test supplies a different
    /// source. Must be called before another thread starts, because a thread that was started earlier does
    /// not block the signals, so a signal could end the process.
    pub(crate) fn interruption(&self) -> Interruption {
        self.interruption.clone().unwrap_or_else(Interruption::of_process)
    }

    /// Returns the arguments.
    pub(crate) fn args(&self) -> &[Vec<u8>] {
        &self.matches.args
    }

    /// Returns a client of the endpoints that the flags name or DNS discovery finds. If a user is given, the
    /// client is authenticated.
    ///
    /// # Errors
    /// Returns the errors of [`Call::globals`] and of [`Globals::connect`].
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let globals = self.globals().await?;
        globals.connect(globals.endpoints.clone()).await
    }

    /// Returns a client like [`Call::connect`], but of only one endpoint.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::connect`].
    pub(crate) async fn connect_to(&self, endpoint: &str) -> Result<Client, Failure> {
        self.globals().await?.connect(vec![endpoint.to_owned()]).await
    }

    /// Returns the time at which the limit of `--command-timeout` ends if it begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.matches.get(COMMAND_TIMEOUT)
    }

    /// Waits for the result of `work`, at most for the time of `--command-timeout`.
    ///
    /// # Errors
    /// Returns the error of `work`, or `DeadlineExceeded` if the time has passed.
    pub(crate) async fn limit<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        self.limit_at(self.deadline(), work).await
    }

    /// Waits like [`Call::limit`], but until the given deadline.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::limit`].
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

    /// Never returns, and repeatedly prints the reasons why clients are not connected to any endpoint. Run at
    /// the same time as a command without a time limit, which otherwise would wait for an endpoint without
    /// any message.
    pub(crate) async fn watch_unreached(&self) {
        let pause = self.matches.get(DIAL_TIMEOUT).max(Duration::from_millis(50));
        loop {
            tokio::time::sleep(pause).await;
            self.tell_unreached(|client| !client.is_connected());
        }
    }

    /// Prints to standard error why endpoints cannot be reached, for the clients for which `of` returns true.
    /// Each reason is printed only once.
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

    /// Waits like [`Call::limit`], but converts an error to the failure with which the command ends.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::limit`].
    pub(crate) async fn limited<T>(
        &self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Failure> {
        Ok(self.limit(work).await?)
    }

    /// Prints a response.
    ///
    /// # Errors
    /// Returns an error if the output format cannot show the response, or standard output is closed.
    pub(crate) fn show(&self, answer: &Answer<'_>) -> Result<(), Failure> {
        self.show_with(answer, false)
    }

    /// Prints a response like [`Call::show`]. If `value_only` is true, prints only values.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::show`].
    pub(crate) fn show_with(&self, answer: &Answer<'_>, value_only: bool) -> Result<(), Failure> {
        let Page { out, err } = Printer { value_only, ..self.printer() }.page(answer)?;
        if !err.is_empty() {
            self.io.err.notice(err);
        }
        if out.is_empty() { Ok(()) } else { self.write(&out) }
    }

    /// Prints a line to standard output.
    ///
    /// # Errors
    /// Returns an error if standard output is closed.
    pub(crate) fn line(&self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.io.out.line(text).map_err(unread)
    }

    /// Writes bytes to standard output.
    ///
    /// # Errors
    /// Returns an error if standard output is closed.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.io.out.write(bytes).map_err(unread)
    }

    /// Prints a line to standard error.
    pub(crate) fn warn(&self, text: impl AsRef<[u8]>) {
        // Ignore an error: if standard error is closed, it cannot be reported anywhere.
        let _ = self.io.err.line(text);
    }
}

/// Returns a hint at the likely cause of a connection error whose message does not name the cause; an empty
/// text for all other errors.
fn hint(error: &str) -> &'static str {
    if error.contains("InvalidContentType") {
        " (the server does not use TLS at this port: try http://, or another port)"
    } else if error.contains("EOF") || error.contains("connection reset by peer") {
        " (the server closed the connection: it may require TLS at this port (https://), or this is not the client port)"
    } else {
        ""
    }
}

/// Converts an argument to a string, for a request field that must be UTF-8.
///
/// # Errors
/// Returns an error if the argument is not UTF-8.
pub(crate) fn utf8(argument: &[u8]) -> Result<String, Failure> {
    std::str::from_utf8(argument).map(str::to_owned).map_err(|_| {
        let shown = cli::go::quote(argument);
        Failure::bad_args(format!("argument {shown} is not UTF-8"))
    })
}
