//! A server for tools that test HTTP/2 servers, such as `h2spec`, `nghttp`, `h2load` and `curl
//! --http2-prior-knowledge`. It answers every request with a few bytes, or with as many as the path says
//! (`/bytes/100000`), and echoes bodies that are sent to `/echo` or as gRPC.
//!
//! `cargo run --release -p mainstay-http2 --example hello -- 127.0.0.1:8080`

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::{Connection, Event, Input, Key, Options, Payload, Role, SendError, Template};

struct Answers {
    head: Template,
    grpc: Template,
    trailers: Template,
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address)?;
    println!("listening on {}", listener.local_addr()?);
    let options = Arc::new(Options { streams_max: 100, ..Options::default() });
    let answers = Arc::new(Answers {
        head: Template::new([(":status", "200"), ("content-type", "text/plain")])
            .map_err(io::Error::other)?,
        grpc: Template::new([(":status", "200"), ("content-type", "application/grpc")])
            .map_err(io::Error::other)?,
        trailers: Template::new([("grpc-status", "0")]).map_err(io::Error::other)?,
    });
    for stream in listener.incoming() {
        let (stream, options, answers) = (stream?, options.clone(), answers.clone());
        stream.set_nodelay(true)?;
        thread::spawn(move || {
            // An error means that the client disconnected, or that it violated the protocol and was told so.
            let _ = serve(stream, &options, &answers);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, options: &Arc<Options>, answers: &Answers) -> io::Result<()> {
    let mut connection = Connection::new(Role::Server, options, Instant::now());
    let mut input = Input::default();
    let mut was_blocked = false;
    loop {
        send(&mut connection, &mut stream)?;
        // Input that was buffered while the connection was blocked is processed before more is read.
        if !was_blocked {
            match stream.read(input.space()) {
                Ok(0) => return Ok(()),
                Ok(n) => input.filled(n),
                Err(error) => return Err(error),
            }
        }
        connection.begin_turn(Instant::now());
        let mut at = 0;
        let result = loop {
            match connection.next(input.unread(), &mut at) {
                // If the stream was reset, nobody needs the answer.
                Ok(Some(event)) => drop(answer(&mut connection, answers, event)),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        was_blocked = connection.is_blocked();
        input.consume(at);
        if let Err(error) = result {
            eprintln!("{error}");
            send(&mut connection, &mut stream)?;
            stream.shutdown(Shutdown::Write)?;
            // Closing the socket with unread input would send a reset, which could destroy data sent before.
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            io::copy(&mut stream, &mut io::sink())?;
            return Ok(());
        }
    }
}

fn send(connection: &mut Connection, stream: &mut TcpStream) -> io::Result<()> {
    loop {
        connection.gather();
        let output = connection.output();
        if output.is_empty() {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); 64];
        let count = output.slices(&mut slices);
        let n = stream.write_vectored(&slices[..count])?;
        output.advance(n);
    }
}

fn answer(connection: &mut Connection, answers: &Answers, event: Event<'_>) -> Result<(), SendError> {
    match event {
        Event::Head { stream, fields, end } => {
            let path = fields.path();
            let digits = path.strip_prefix(b"/bytes/").and_then(|digits| std::str::from_utf8(digits).ok());
            if fields.get(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc")) {
                connection.send_head(stream, &answers.grpc, &[], false)?;
                if end {
                    finish(connection, answers, stream)?;
                }
            } else if path == b"/echo" {
                connection.send_head(stream, &answers.head, &[], end)?;
            } else if let Some(len) = digits.and_then(|digits| digits.parse::<usize>().ok()) {
                connection.send_head(stream, &answers.head, &[], false)?;
                let body = Bytes::from(vec![b'x'; len.min(1 << 30)]);
                connection.send_data(stream, Payload::from(body), true)?;
            } else if end {
                hello(connection, answers, stream)?;
            }
        }
        Event::Data { stream, bytes, end } => {
            if connection.has_begun(stream) {
                connection.send_data(stream, Payload::from(Bytes::copy_from_slice(bytes)), false)?;
            }
            connection.release(stream, bytes.len());
            if end {
                finish(connection, answers, stream)?;
            }
        }
        Event::Trailers { stream, .. } => finish(connection, answers, stream)?,
        Event::Informational { .. }
        | Event::Reset { .. }
        | Event::Pinged
        | Event::Pong(_)
        | Event::Settings
        | Event::GoAway { .. } => {}
    }
    Ok(())
}

fn finish(connection: &mut Connection, answers: &Answers, stream: Key) -> Result<(), SendError> {
    if connection.has_begun(stream) {
        connection.send_trailers(stream, &answers.trailers, &[])
    } else {
        hello(connection, answers, stream)
    }
}

fn hello(connection: &mut Connection, answers: &Answers, stream: Key) -> Result<(), SendError> {
    connection.send_head(stream, &answers.head, &[(b"content-length", b"6")], false)?;
    connection.send_data(stream, Payload::from(Bytes::from_static(b"hello\n")), true)
}
