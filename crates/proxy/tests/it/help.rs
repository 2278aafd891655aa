//! Help texts, as etcd 3.7 prints them.

use cli::Program;

#[test]
fn help_texts_are_etcds() {
    let check = |name: &str, program: &Program<()>, path: &[&str]| {
        testkit::expect::check(&format!("{name}.txt"), &program.help(path));
    };
    check("gateway", &proxy::GATEWAY, &["gateway"]);
    check("gateway_start", &proxy::GATEWAY, &["gateway", "start"]);
    check("grpc-proxy", &proxy::GRPC_PROXY, &["grpc-proxy"]);
    check("grpc-proxy_start", &proxy::GRPC_PROXY, &["grpc-proxy", "start"]);
}
