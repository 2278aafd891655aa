use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use testkit::http2::{Connection, DATA, END_STREAM, HEADERS, message};

use crate::echo::run;

pub(crate) fn packed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).and_then(|()| encoder.finish()).expect("packing into memory")
}

#[test]
fn gzip_is_answered_in_kind() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    let plain = b"value ".repeat(100);
    raw.call(1, "/test.Echo/Unary", &[("grpc-encoding", "gzip")], &message(1, &packed(&plain)));
    let answer = raw.next_of(DATA).payload;
    assert_eq!(answer[0], 1);
    assert!(answer.len() < plain.len());
    let mut unpacked = Vec::new();
    GzDecoder::new(&answer[5..]).read_to_end(&mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain);
    raw.call(3, "/test.Echo/Unary", &[], &message(0, b"plain"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"plain"));
}

#[test]
fn bombs_and_unknown_encodings_are_refused() {
    let running = run();
    let mut raw = Connection::h2(running.address, &[]);
    let bomb = packed(&vec![0; 3 << 20]);
    assert!(bomb.len() < 16_000);
    raw.call(1, "/test.Echo/Unary", &[("grpc-encoding", "gzip")], &message(1, &bomb));
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM);
    raw.call(3, "/test.Echo/Unary", &[("grpc-encoding", "snappy")], &message(1, b"a"));
    assert_eq!(raw.next_of(HEADERS).flags & END_STREAM, END_STREAM);
    raw.call(5, "/test.Echo/Unary", &[], &message(0, b"a"));
    assert_eq!(raw.next_of(DATA).payload, message(0, b"a"));
}
