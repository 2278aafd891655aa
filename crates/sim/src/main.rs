fn main() {
    let seed = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let options = mainstay_sim::Options { prints: true, ..Default::default() };
    let report = mainstay_sim::run(seed, &options);
    println!("{report:?}");
}
