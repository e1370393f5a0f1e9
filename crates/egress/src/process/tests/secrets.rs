//! Where values of boundary secrets must not go, however a request names their hosts.

use zeroize::Zeroizing;

use super::bed::{self, Bed, host, served};
use crate::control::BoundarySecret;
use crate::limits::EgressLimits;

const PLACEHOLDER: &str = "shoal-placeholder-0123";
const VALUE: &str = "sk-the-value";

fn bed(port: u16) -> Bed {
    let secret = BoundarySecret {
        placeholder: PLACEHOLDER.to_owned(),
        value: Zeroizing::new(VALUE.to_owned()),
        header: "authorization".to_owned(),
        hosts: vec![host("up.test")],
        secret: "s".to_owned(),
    };
    let rules = [format!("up.test:{port}/http"), format!("one.test:{port}"), "127.0.0.1".into()];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    Bed::with_secrets(&rules, None, EgressLimits::default(), None, vec![secret])
}

#[tokio::test]
async fn values_go_out_on_the_port_of_tls_alone() {
    let (real, mut seen) = served().await;
    let port = real.port();
    let bed = bed(port);
    let request = |target: &str| {
        format!(
            "GET {target} HTTP/1.1\r\nHost: up.test:{port}\r\nAuthorization: {PLACEHOLDER}\r\n\r\n"
        )
    };
    let plain = bed.dial_name("up.test", port).await;
    let proxied = bed.dial_proxy().await;
    for (mut client, asked) in
        [(plain, request("/")), (proxied, request(&format!("http://up.test:{port}/")))]
    {
        bed::write(&mut client, asked.as_bytes()).await;
        assert!(bed::read_some(&mut client).await.starts_with(b"HTTP/1.1 200"));
        drop(client);
        let arrived = seen.recv().await.unwrap();
        assert!(arrived.contains(PLACEHOLDER) && !arrived.contains(VALUE), "{arrived}");
    }
}

/// Its connection decides what a host is, and not what a request says.
#[tokio::test]
async fn a_host_that_is_only_named_like_one_of_a_secret_gets_no_value() {
    let (real, mut seen) = served().await;
    let port = real.port();
    let bed = bed(port);
    let mut client = bed.dial_name("one.test", port).await;
    let request =
        format!("GET / HTTP/1.1\r\nHost: up.test\r\nAuthorization: {PLACEHOLDER}\r\n\r\n");
    bed::write(&mut client, request.as_bytes()).await;
    assert!(bed::read_some(&mut client).await.starts_with(b"HTTP/1.1 200"));
    drop(client);
    let arrived = seen.recv().await.unwrap();
    assert!(arrived.contains(PLACEHOLDER) && !arrived.contains(VALUE), "{arrived}");
}
