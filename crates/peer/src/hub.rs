use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::handler::Handler;
use crate::inbox::Inbox;
use crate::options::{Log, Options};

/// The peer thread.
pub(crate) struct Hub;

impl Hub {
    pub(crate) fn start(
        _: Options,
        _: Arc<dyn Handler>,
        _: Log,
        inbox: Arc<Inbox>,
    ) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
            runtime.block_on(async { while std::future::poll_fn(|cx| inbox.poll_arrivals(cx)).await.is_some() {} });
        })
    }
}
