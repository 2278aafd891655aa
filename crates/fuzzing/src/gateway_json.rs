//! Checks the conversions of the JSON gateway: requests from JSON to protobuf, and responses from protobuf to
//! JSON.

use api::Rpc;
use api::descriptor::{Message, of};
use gateway::{Next, RangeEncoder, Values, decode, decode_value, encode};

/// Maximum number of elements of a request, as in a member with default settings.
const ELEMENTS_MAX: usize = 64 * 128;

fn shape(number: u8) -> Option<(&'static Message, &'static Message)> {
    of(Rpc::ALL[usize::from(number) % Rpc::ALL.len()])
}

/// Fuzz target: the first byte selects the RPC, and the second byte the size of pieces. The rest is used
/// twice: as the JSON body of a request, and as an encoded response. If the body is accepted, the request is
/// written as JSON and read again, which must give the same request. Reading the body in pieces must give the
/// same result as reading it as a whole.
pub fn run(input: &[u8]) {
    let [number, cut, body @ ..] = input else { return };
    let Some((request, response)) = shape(*number) else { return };
    let read = decode(request, body, ELEMENTS_MAX);
    if let Ok(message) = &read {
        let mut json = Vec::new();
        encode(request, message, &mut json).expect("what was written can be read");
        let again = decode(request, &json, ELEMENTS_MAX).expect("JSON of our own can be read");
        let mut json_again = Vec::new();
        encode(request, &again, &mut json_again).expect("what was written can be read");
        assert!(json == json_again, "{}", String::from_utf8_lossy(&json));
    }
    let (mut values, mut parts, mut is_end) = (Values::default(), body.chunks(usize::from(*cut) + 1), false);
    let first = loop {
        match values.next(is_end) {
            Next::More => match parts.next() {
                Some(part) => values.push(part),
                None => is_end = true,
            },
            first => break first,
        }
        assert!(values.held_bytes() <= body.len());
    };
    match first {
        Next::Value(value) => assert_eq!(decode_value(request, &value, ELEMENTS_MAX), read),
        Next::End | Next::More => assert_eq!(read, Ok(Vec::new())),
        Next::Wrong(why) => assert_eq!(read, Err(gateway::Refused::Invalid(why))),
    }
    // Unlike a real response, this one may be invalid. Even so, converting it must not panic, and converting
    // it in pieces must give the same JSON as converting it as a whole.
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    let encoded = encode(response, body, &mut whole);
    let mut encoder = RangeEncoder::new(response, &mut pieces);
    let pushed = body.chunks(usize::from(*cut) + 1).try_for_each(|piece| encoder.push(piece, &mut pieces));
    if encoded.is_ok() && pushed.is_ok() && encoder.finish(&mut pieces).is_ok() {
        assert!(whole == pieces, "{}", String::from_utf8_lossy(&whole));
    }
}

/// Returns seeds: JSON bodies of several RPCs, not all of them valid, and one response in protobuf.
pub fn seeds() -> Vec<Vec<u8>> {
    let call = |rpc: Rpc, body: &str| [&[rpc as u8, 3][..], body.as_bytes()].concat();
    vec![
        call(Rpc::KvPut, r#"{"key":"Zm9v","value":"YmFy-_==","lease":"7","prevKv":true,"x":[{"y":null}]}"#),
        call(
            Rpc::KvRange,
            "{\"key\":\"Zm9v\",\"limit\":1.50e1,\"sort_order\":\"DESCEND\",\"sortTarget\":3} {",
        ),
        call(
            Rpc::KvTxn,
            r#"{"compare":[{"target":"VALUE","key":"YQ==","value":""}],"success":[{"requestTxn":{"failure":[{"request_put":{}}]}}]}"#,
        ),
        call(Rpc::Watch, r#"{"create_request":{"filters":["NOPUT",1],"watch_id":-1}}{"cancel_request":{}}"#),
        call(Rpc::AuthUserAdd, "{\"name\":\"\\u00e9\\ud83d\\ude00<&>\",\"options\":{\"no_password\":false}}"),
        [&[Rpc::KvRange as u8, 9][..], b"\x0a\x04\x08\x01\x18\x02\x12\x03\x0a\x01a\x12\x00\x18\x01\x20\x02"]
            .concat(),
    ]
}
