use std::collections::VecDeque;
use std::sync::Arc;

use testkit::Random;

use super::*;
use crate::fields::{Fields, Refused, Use};

const LIST_BYTES_MAX: u32 = 16 * 1024;

fn decoder() -> Decoder {
    Decoder::new(LIST_BYTES_MAX)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let two = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    digits.chunks(2).map(two).collect()
}

fn shown(fields: &Fields) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    fields.iter().map(|(name, value)| format!("{}: {}", text(name), text(value))).collect()
}

fn read(decoder: &mut Decoder, what_for: Use, block: &str) -> Vec<String> {
    shown(&decoder.decode(&hex(block), what_for).unwrap().unwrap())
}

/// Integers of RFC 7541, C.1.
#[test]
fn numbers_of_the_rfc() {
    for (bytes, bits, value) in
        [(&[0x0a][..], 5, 10), (&[0x1f, 0x9a, 0x0a], 5, 1337), (&[0x2a], 8, 42), (&[0xe0 | 10], 5, 10)]
    {
        let mut block = bytes;
        assert_eq!((number(&mut block, bits), block.len()), (Ok(value), 0));
        let mut out = Vec::new();
        put_number(&mut out, 0, bits, value);
        assert_eq!(out[1..], bytes[1..]);
        assert_eq!(out[0], bytes[0] & ((1 << bits) - 1) as u8);
    }
    // Truncated integers, and one longer than any integer accepted.
    for bytes in [&[0x1f][..], &[0x1f, 0x9a], &[0x1f, 0x80, 0x80, 0x80, 0x80, 0x01], &[]] {
        assert_eq!(number(&mut &*bytes, 5), Err(Damaged));
    }
}

/// Every kind of field, from RFC 7541, C.2. Decoded as trailers, since these lists are not complete messages.
#[test]
fn fields_of_the_rfc() {
    let mut decoder = decoder();
    let custom =
        read(&mut decoder, Use::Trailers, "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572");
    assert_eq!((custom, decoder.table_bytes()), (vec!["custom-key: custom-header".to_owned()], 55));
    let mut decoder = self::decoder();
    // `:path` is not allowed in trailers, but the block itself is valid.
    let path = decoder.decode(&hex("040c 2f73 616d 706c 652f 7061 7468"), Use::Trailers).unwrap();
    assert!(matches!(path, Err(Refused::Malformed(_))));
    assert_eq!(
        read(&mut decoder, Use::Trailers, "1008 7061 7373 776f 7264 0673 6563 7265 74"),
        ["password: secret"]
    );
    assert_eq!(decoder.table_bytes(), 0);
}

/// Requests of RFC 7541, C.3 and C.4, without and with Huffman codes; the table fills up.
#[test]
fn requests_of_the_rfc() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for [first, second, third] in [plain, coded] {
        let mut decoder = decoder();
        let expected = [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"];
        assert_eq!(read(&mut decoder, Use::Request, first), expected);
        assert_eq!(decoder.table_bytes(), 57);
        let expected = [&expected[..], &["cache-control: no-cache"]].concat();
        assert_eq!(read(&mut decoder, Use::Request, second), expected);
        assert_eq!(decoder.table_bytes(), 110);
        let expected = [
            ":method: GET",
            ":scheme: https",
            ":path: /index.html",
            ":authority: www.example.com",
            "custom-key: custom-value",
        ];
        assert_eq!(read(&mut decoder, Use::Request, third), expected);
        assert_eq!(decoder.table_bytes(), 164);
    }
}

/// Responses of RFC 7541, C.5 and C.6, with a table of 256 bytes, so that entries are evicted.
#[test]
fn responses_of_the_rfc() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120
         474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738
         666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33
         3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718
         63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7
         b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        let mut decoder = decoder();
        // The table size update precedes the first block.
        let small = [&[0x3f, 0xe1, 0x01][..], &hex(blocks[0])].concat();
        let first = shown(&decoder.decode(&small, Use::Response).unwrap().unwrap());
        let expected = [
            ":status: 302",
            "cache-control: private",
            "date: Mon, 21 Oct 2013 20:13:21 GMT",
            "location: https://www.example.com",
        ];
        assert_eq!((first, decoder.table_bytes()), (expected.map(str::to_owned).to_vec(), 222));
        assert_eq!(read(&mut decoder, Use::Response, blocks[1])[0], ":status: 307");
        assert_eq!(decoder.table_bytes(), 222);
        let third = read(&mut decoder, Use::Response, blocks[2]);
        assert_eq!(third[5], "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
        assert_eq!(third[2], "date: Mon, 21 Oct 2013 20:13:22 GMT");
        assert_eq!(decoder.table_bytes(), 215);
    }
}

#[test]
fn damaged_blocks_are_refused() {
    let cases: &[&[u8]] = &[
        &[0x80],             // index 0
        &[0xbe],             // entry of an empty table
        &[0xff, 0x80],       // truncated index
        &[0x40, 3, 1],       // truncated name
        &[0x44],             // missing value
        &[0x3f, 0xff, 0x7f], // table larger than allowed
        &[0x3f, 0xe2, 0x1f], // table larger than allowed by one byte
        &[0x82, 0x20],       // table size update behind a field
        &[0x40, 0x81, 0, 0], // Huffman padding that is not all ones
        &[0x7f, 0x00],       // name from an entry of an empty table
    ];
    for block in cases {
        assert_eq!(decoder().decode(block, Use::Trailers), Err(Undecoded::Damaged), "{block:x?}");
    }
    // Two table size updates, the second to the maximum size.
    assert!(decoder().decode(&[0x20, 0x3f, 0xe1, 0x1f], Use::Trailers).unwrap().is_ok());
}

#[test]
fn a_block_that_repeats_is_the_same_list_while_the_table_allows_it() {
    let mut decoder = decoder();
    let decode =
        |decoder: &mut Decoder, text: &str| decoder.decode(&hex(text), Use::Request).unwrap().unwrap();
    // `:path: /key` enters the table: not cached, since decoding the block again would change the table
    // again.
    let first = decode(&mut decoder, "8386 4404 2f6b 6579");
    assert_eq!((first.path(), decoder.memos()), (&b"/key"[..], 0));
    // A block that arrived once is not cached either, because many connections make one call and are then
    // silent.
    let held = decoder.heap_bytes();
    let once = decode(&mut decoder, "8386 be");
    assert_eq!((*once == *first, decoder.memos(), decoder.heap_bytes()), (true, 0, held));
    let second = decode(&mut decoder, "8386 be");
    let third = decode(&mut decoder, "8386 be");
    assert!(Arc::ptr_eq(&second, &third) && *second == *first);
    // A new entry shifts the indices: the same bytes mean another path.
    decode(&mut decoder, "8386 4406 2f6f 7468 6572");
    let fourth = decode(&mut decoder, "8386 be");
    assert_eq!((fourth.path(), second.path()), (&b"/other"[..], &b"/key"[..]));
    // After the table was emptied, the same bytes reference a missing entry.
    assert_eq!(decoder.decode(&hex("20 8386 be"), Use::Request), Err(Undecoded::Damaged));
    // A refused list is not cached, nor is a list for another purpose.
    let mut decoder = self::decoder();
    for _ in 0..3 {
        assert!(decoder.decode(&hex("8386"), Use::Request).unwrap().is_err());
        assert!(decoder.decode(&hex("88"), Use::Response).unwrap().is_ok());
        assert!(decoder.decode(&hex("88"), Use::Trailers).unwrap().is_err());
    }
    assert_eq!(decoder.memos(), 1);
}

#[test]
fn memory_of_a_decoder_is_bounded() {
    let mut random = Random::new(3);
    let mut decoder = decoder();
    for _ in 0..20_000 {
        let mut block = Vec::new();
        for _ in 0..random.below(5) {
            let (name, value) = (random.index(60) + 1, random.index(600));
            block.push(0x40);
            put_number(&mut block, 0, 7, name);
            // Names of digits have no special meaning.
            block.extend((0..name).map(|_| b'0' + random.below(10) as u8));
            put_number(&mut block, 0, 7, value);
            block.extend((0..value).map(|_| b'a' + random.below(26) as u8));
        }
        assert!(decoder.decode(&block, Use::Trailers).unwrap().is_ok());
        assert!(decoder.table_bytes() <= TABLE_BYTES);
        assert!(decoder.heap_bytes() < 8 * TABLE_BYTES, "{}", decoder.heap_bytes());
    }
    decoder.rest();
    assert!(decoder.heap_bytes() < 2 * TABLE_BYTES, "{}", decoder.heap_bytes());
}

/// Short blocks that decode to large lists, repeated many times.
#[test]
fn large_lists_are_not_remembered() {
    let mut decoder = decoder();
    assert!(decoder.decode(&large_entry(), Use::Trailers).unwrap().is_ok());
    let held = decoder.heap_bytes();
    for count in 0..8 {
        assert!(decoder.decode(&[0xbe; 4][count % 4..], Use::Trailers).unwrap().is_ok());
    }
    assert_eq!((decoder.heap_bytes(), decoder.memos()), (held, 0));
}

#[test]
fn a_bomb_is_decoded_and_not_unpacked() {
    let mut decoder = decoder();
    // Inserts an entry of nearly 4 KiB; the following blocks reference it repeatedly.
    assert!(decoder.decode(&large_entry(), Use::Trailers).unwrap().is_ok());
    let held = decoder.heap_bytes();
    assert_eq!(decoder.decode(&[0xbe; 15], Use::Trailers).unwrap(), Err(Refused::TooLarge));
    assert_eq!((decoder.pass_over(&[0xbe; 4]), decoder.pass_over(&[0xbe; 5])), (Ok(true), Ok(false)));
    assert_eq!((decoder.heap_bytes(), decoder.memos()), (held, 0));
    // The table is unchanged.
    assert_eq!(decoder.decode(&[0xbe], Use::Trailers).unwrap().unwrap().len(), 1);
    // More than four times the largest list accepted.
    for block in [&[0xbe; 18][..], &[0xbe; 16_000], &[0x7e, 0].repeat(8_000)] {
        let mut decoder = self::decoder();
        assert!(decoder.decode(&large_entry(), Use::Trailers).unwrap().is_ok());
        assert_eq!(decoder.decode(block, Use::Trailers), Err(Undecoded::Excessive));
        assert_eq!(decoder.pass_over(block), Err(Undecoded::Excessive));
    }
}

/// Returns a block that inserts an entry of 4,000 bytes into the table.
fn large_entry() -> Vec<u8> {
    let mut block = vec![0x40, 1, b'x'];
    put_number(&mut block, 0, 7, 4_000);
    block.extend([b'v'; 4_000]);
    block
}

/// The name may come from an entry that the insertion evicts, and the insertion may compact the table.
#[test]
fn an_entry_takes_its_name_from_one_that_leaves() {
    let mut random = Random::new(17);
    let mut decoder = decoder();
    let mut model: VecDeque<(String, String)> = VecDeque::new();
    for _ in 0..5_000 {
        let value: String =
            (0..random.index(900)).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        let mut block = Vec::new();
        let name = if model.is_empty() || random.one_in(4) {
            let len = random.index(3_500) + 1;
            let name: String = (0..len).map(|_| char::from(b'0' + random.below(10) as u8)).collect();
            block.push(0x40);
            put_number(&mut block, 0, 7, name.len());
            block.extend(name.as_bytes());
            name
        } else {
            let at = random.index(model.len());
            put_number(&mut block, 0x40, 6, static_table::LEN + 1 + at);
            model[at].0.clone()
        };
        put_number(&mut block, 0, 7, value.len());
        block.extend(value.as_bytes());
        let read = decoder.decode(&block, Use::Trailers).unwrap().unwrap();
        assert_eq!(shown(&read), [format!("{name}: {value}")]);
        model.push_front((name, value));
        let size = |model: &VecDeque<(String, String)>| -> usize {
            model.iter().map(|(name, value)| name.len() + value.len() + ENTRY_BYTES).sum()
        };
        while size(&model) > TABLE_BYTES {
            model.pop_back();
        }
        assert_eq!(decoder.table_bytes(), size(&model));
        assert!(decoder.heap_bytes() < 12 * TABLE_BYTES, "{}", decoder.heap_bytes());
        for (at, (name, value)) in model.iter().enumerate() {
            assert_eq!(decoder.entry(at), Some((name.as_bytes(), value.as_bytes())));
        }
    }
}

/// Arbitrary bytes are refused or decoded, without exceeding the table's limit and without a panic.
#[test]
fn any_bytes_are_borne() {
    let mut random = Random::new(1);
    let mut decoder = decoder();
    for _ in 0..50_000 {
        let len = random.index(40);
        let block = random.bytes(len);
        if decoder.decode(&block, Use::Request).is_err() {
            decoder = self::decoder();
        }
        assert!(decoder.table_bytes() <= TABLE_BYTES);
    }
}

type List = Vec<(String, String)>;

fn encoded(encoder: &mut Encoder, template: &Template, more: &List) -> Vec<u8> {
    let mut out = Vec::new();
    let fields = || more.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    encoder.encode(template, fields(), &mut out);
    assert!(out.len() <= Encoder::bytes_max(template, fields()));
    out
}

fn list(fields: &[(&str, &str)]) -> List {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn what_repeats_is_a_byte_each_from_the_second_time_on() {
    let (mut encoder, mut decoder) = (Encoder::new(), decoder());
    let head = Template::new([(":status", "200"), ("content-type", "application/grpc")]).unwrap();
    let trailers = Template::new([("grpc-status", "0")]).unwrap();
    for round in 0..4 {
        let block = encoded(&mut encoder, &head, &List::new());
        assert_eq!(block.len() == 2, round > 0, "{block:x?}");
        assert_eq!(
            shown(&decoder.decode(&block, Use::Response).unwrap().unwrap())[1],
            "content-type: application/grpc"
        );
        let block = encoded(&mut encoder, &trailers, &List::new());
        assert_eq!(block.len() == 1, round > 0, "{block:x?}");
        assert_eq!(shown(&decoder.decode(&block, Use::Trailers).unwrap().unwrap()), ["grpc-status: 0"]);
    }
    // Another template with the same field finds it in the table.
    let same = Template::new([("grpc-status", "0"), ("x", "y")]).unwrap();
    encoded(&mut encoder, &same, &List::new());
    assert_eq!(encoded(&mut encoder, &same, &List::new()).len(), 2);
}

#[test]
fn changes_of_the_table_are_announced() {
    let template = Template::new([("grpc-status", "0")]).unwrap();
    let (mut encoder, mut decoder) = (Encoder::new(), decoder());
    let mut send = |encoder: &mut Encoder, expected: &[u8]| {
        let block = encoded(encoder, &template, &List::new());
        assert!(block.starts_with(expected), "{block:x?}");
        assert_eq!(shown(&decoder.decode(&block, Use::Trailers).unwrap().unwrap()), ["grpc-status: 0"]);
        (block.len(), decoder.table_bytes())
    };
    assert_eq!(send(&mut encoder, &[0x40]), (15, 44));
    assert_eq!(send(&mut encoder, &[0xbe]), (1, 44));
    // The limit falls below the size of the entry, which is evicted, and rises again before the next block:
    // both changes are announced.
    encoder.set_limit(10);
    assert_eq!(send(&mut encoder, &[0x2a, 0x00]), (16, 0));
    assert_eq!(send(&mut encoder, &[0x00]), (15, 0));
    encoder.set_limit(4096);
    assert_eq!(send(&mut encoder, &[0x3f, 0xe1, 0x1f, 0x40]), (18, 44));
    encoder.set_limit(0);
    encoder.set_limit(100);
    assert_eq!(send(&mut encoder, &[0x20, 0x3f, 0x45, 0x40]), (18, 44));
    assert_eq!(send(&mut encoder, &[0xbe]), (1, 44));
    // A limit above the maximum that is used, set twice.
    encoder.set_limit(u32::MAX);
    assert_eq!(send(&mut encoder, &[0x3f, 0xe1, 0x1f, 0xbe]), (4, 44));
    encoder.set_limit(1 << 20);
    assert_eq!(send(&mut encoder, &[0xbe]), (1, 44));
}

/// The decoder reads the same fields that the encoder wrote, for random lists, orders and table limits.
#[test]
fn what_the_encoder_writes_the_decoder_reads() {
    let mut random = Random::new(11);
    for _ in 0..60 {
        let text = |random: &mut Random, most: usize| {
            let len = random.index(most) + 1;
            (0..len).map(|_| char::from(b'a' + random.below(26) as u8)).collect::<String>()
        };
        let templates: Vec<(Template, List)> = (0..12)
            .map(|_| {
                let mut fields =
                    list(&[[("grpc-status", "0")], [("content-type", "application/grpc")]][random.index(2)]);
                for _ in 0..random.index(6) {
                    let most = [10, 10, 400][random.index(3)];
                    fields.push((format!("x{}", text(&mut random, 8)), text(&mut random, most)));
                }
                (Template::new(fields.clone()).unwrap(), fields)
            })
            .collect();
        let (mut encoder, mut decoder) = (Encoder::new(), decoder());
        for _ in 0..300 {
            if random.one_in(20) {
                for _ in 0..=random.index(2) {
                    encoder.set_limit([0, 60, 500, 4096, 1 << 20][random.index(5)]);
                }
            }
            let (template, fields) = &templates[random.index(templates.len())];
            let more: List = (0..random.index(3))
                .map(|_| (format!("x{}", text(&mut random, 8)), text(&mut random, 30)))
                .collect();
            let block = encoded(&mut encoder, template, &more);
            let read = decoder.decode(&block, Use::Trailers).unwrap().unwrap();
            let expected: Vec<String> =
                fields.iter().chain(&more).map(|(name, value)| format!("{name}: {value}")).collect();
            assert_eq!(shown(&read), expected);
        }
    }
}

#[test]
fn fields_that_cannot_be_sent_are_refused() {
    for (name, value) in [("Name", "v"), ("na me", "v"), ("", "v"), ("x", "a\r\nb"), ("x", " v"), ("x", "\0")]
    {
        assert_eq!(Template::new([(name, value)]).unwrap_err().name, name);
    }
    // Forbidden fields (RFC 9113, sections 8.2.2 and 8.3).
    let head = Template::new([(":method", "GET"), ("te", "trailers"), ("content-length", "5")]).unwrap();
    let nothing = Template::new(std::iter::empty::<(&str, &str)>()).unwrap();
    for (name, value) in
        [("connection", "close"), ("transfer-encoding", "chunked"), ("te", "gzip"), (":unknown", "x")]
    {
        assert_eq!(Template::new([(name, value)]).unwrap_err().name, name);
        assert!(check_all(&nothing, &[(name.as_bytes(), value.as_bytes())]).is_err());
    }
    assert_eq!(Template::new([("x", "y"), (":path", "/")]).unwrap_err().name, ":path");
    assert!(check_all(&head, &[(b":path", b"/")]).is_err());
    assert!(check_all(&nothing, &[(b"x", b"y"), (b":path", b"/")]).is_err());
    assert!(check_all(&nothing, &[(b":path", b"/"), (b"x", b"y")]).is_ok());
    assert!(check_all(&head, &[(b"x", b"y")]).is_ok());
}
