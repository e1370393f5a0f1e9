# Cases 1 to 14: addresses.

PUBLIC = "1.2.3.4"
METADATA = "169.254.169.254"


@case(1)
def _():
    refused("a public address", lambda: dial(PUBLIC, 443), f"kernel:{PUBLIC}:443")
    refused("with a greeting that names an allowed host", lambda: dial(PUBLIC, 443, hello(API)), f"kernel:{PUBLIC}:443")
    refused("as one of IPv6", lambda: dial6("::ffff:1.2.3.4", 8443), f"kernel:{PUBLIC}:8443")
    # Data in the first packet.
    def fast_open():
        with socket.socket() as it:
            it.sendto(hello(API), socket.MSG_FASTOPEN, (PUBLIC, 8444))
            return answer(it)
    refused("by Fast Open", fast_open, f"kernel:{PUBLIC}:8444")
    reaches("an allowed name", lambda: by_name(API, 443, hello(API)), "45.0.0.1:443")


@case(2)
def _():
    for target in (f"{PUBLIC}:443", f"{PUBLIC}:80", "[2606:4700::1111]:443"):
        refused(f"CONNECT {target}", lambda: tunnel(target, hello(API)), f"no rule allows {target}", ["403"])
    reaches("CONNECT to an allowed name", lambda: tunnel(f"{API}:443", hello(API)), "45.0.0.1:443")


@case(3)
def _():
    for text in (PUBLIC, "10.0.0.1", "127.0.0.1", METADATA, "0.0.0.0"):
        refused(f"SOCKS {text}", lambda: socks(1, socket.inet_aton(text), 443), "names only", ["code 8"])
    for text in ("2606:4700::1111", "::1", "fd00::1", "::ffff:10.0.0.1"):
        refused(f"SOCKS {text}", lambda: socks(4, socket.inet_pton(socket.AF_INET6, text), 443), "names only", ["code 8"])
    refused("SOCKS, an address as a name", lambda: socks_name(PUBLIC, 443), "does not name a host", ["code 2"])
    reaches("SOCKS, an allowed name", lambda: socks_name(API, 443, hello(API)), "45.0.0.1:443")


@case(4)
def _():
    for host in ("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.01", "0x7f.1", "16843009"):
        refused(f"CONNECT {host}", lambda: tunnel(f"{host}:443"), "neither a name nor an address", ["400"])
        url = f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
        refused(f"URL {host}", lambda: proxied(url), "neither a name nor an address", ["400"])
        refused(f"SOCKS {host}", lambda: socks_name(host, 80), "does not name a host", ["code 2"])
    refused("a number as an address", lambda: dial("16909060", 443), "kernel:1.2.3.4:443")


@case(5)
def _():
    for text in ("::ffff:169.254.169.254", "::ffff:a9fe:a9fe"):
        refused(f"dial {text}", lambda: dial6(text, 80), f"kernel:{METADATA}:80")
        refused(f"CONNECT {text}", lambda: tunnel(f"[{text}]:80"), "no rule allows", ["403"])
    for text in ("::ffff:0:a9fe:a9fe", "::a9fe:a9fe"):
        refused(f"dial {text}", lambda: dial6(text, 80))
        refused(f"CONNECT {text}", lambda: tunnel(f"[{text}]:80"), "no rule allows", ["403"])


@case(6)
def _():
    forms = ("64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "64:ff9b:1:fffe:a9:fea9:fe00:0", "2001:db8:122:344:c0:2:2100::")
    for text in forms:
        refused(f"dial {text}", lambda: dial6(text, 80))
        refused(f"CONNECT {text}", lambda: tunnel(f"[{text}]:80"), "no rule allows", ["403"])
    refused("a name that leads there", lambda: by_name("nat64.wild.test", 443, hello("nat64.wild.test")), "nat64.wild.test leads to")


@case(7)
def _():
    for text in ("2002:a9fe:a9fe::", "2002:7f00:1::1", "2001::1", "2001:0:a9fe:a9fe::"):
        refused(f"dial {text}", lambda: dial6(text, 80))
        refused(f"CONNECT {text}", lambda: tunnel(f"[{text}]:80"), "no rule allows", ["403"])
    for name in ("sixtofour.wild.test", "teredo.wild.test", "mapped.wild.test"):
        refused(f"{name} leads there", lambda: by_name(name, 443, hello(name)), f"{name} leads to")


@case(8)
def _():
    with socket.socket() as own:
        own.bind(("0.0.0.0", 0))
        own.listen()
        port = own.getsockname()[1]
        def own_answers(address):
            with socket.create_connection((address, port), PATIENCE):
                taken, _ = own.accept()
                taken.close()
                return "reached own"
        reaches("0.0.0.0 is one's own loopback", lambda: own_answers("0.0.0.0"), "own")
        reaches("and so is what node servers print", lambda: own_answers("198.18.0.1"), "own")
    refused("0.0.0.0", lambda: dial("0.0.0.0", GIVEN["port"]), None, ["ECONNREFUSED"])
    refused("[::]", lambda: dial6("::", GIVEN["port"]), None, ["ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH"])
    for target in (f"0.0.0.0:{GIVEN['port']}", f"[::]:{GIVEN['port']}", f"[::1]:{GIVEN['port']}", f"127.0.0.1:{GIVEN['port']}", "0.0.0.1:80"):
        refused(f"CONNECT {target}", lambda: tunnel(target), "no rule allows", ["403"])


@case(9)
def _():
    for text in (METADATA, "100.100.100.200", "192.0.0.192", "168.63.129.16", "169.254.170.2"):
        refused(f"dial {text}", lambda: dial(text, 80), f"kernel:{text}:80")
        refused(f"CONNECT {text}", lambda: tunnel(f"{text}:80"), f"no rule allows {text}:80", ["403"])
        url = f"GET http://{text}/latest/meta-data/ HTTP/1.1\r\nHost: {text}\r\n\r\n"
        refused(f"URL {text}", lambda: proxied(url), f"no rule allows {text}:80", ["403"])
    refused("dial fd00:ec2::254", lambda: dial6("fd00:ec2::254", 80))
    refused("CONNECT fd00:ec2::254", lambda: tunnel("[fd00:ec2::254]:80"), "no rule allows", ["403"])
    refused("a name that leads there", lambda: by_name("metadata.wild.test", 443, hello("metadata.wild.test")), "metadata.wild.test leads to")
    refused("the name of one", lambda: asks("metadata.google.internal"), "name:metadata.google.internal", ["code 3"])


@case(10)
def _():
    def link_local():
        with socket.socket(socket.AF_INET6) as it:
            it.settimeout(PATIENCE)
            it.connect(("fe80::1", GIVEN["port"], 0, socket.if_nametoindex("lo")))
            return answer(it)
    refused("a link-local address", link_local)
    for target in ("[fe80::1%lo]:80", "[fe80::1%251]:80", "fe80::1%lo:80"):
        refused(f"CONNECT {target}", lambda: tunnel(target), "", ["400"])
    refused("CONNECT without a scope", lambda: tunnel("[fe80::1]:80"), "no rule allows", ["403"])


@case(11)
def _():
    known = {address_of(API), address_of(WEB)}
    for last in range(40):
        text = f"198.19.{last}.{last * 5 + 1}"
        if text not in known:
            refused(f"dial {text}", lambda: dial(text, 443, hello(API)), f"{text} 443 no name has this address", ["closed"])
    refused("through the proxy", lambda: tunnel("198.19.3.3:443", hello(API)), "no rule allows", ["403"])
    refused("an allowed one through the proxy", lambda: tunnel(f"{address_of(API)}:443", hello(API)), "no rule allows", ["403"])


@case(12)
def _():
    theirs = GIVEN["theirs"]
    refused("the address that another sandbox has for an allowed name", lambda: dial(theirs["allowed"], 443, hello(API)), "no name has this address", ["closed"])
    refused("and for a name of its own", lambda: dial(theirs["own"], 443, hello(API)), "no name has this address", ["closed"])


@case(13)
def _():
    for address in GIVEN["node"]:
        refused(f"dial {address}", lambda: dial(address, GIVEN["port"]), f"kernel:{address}:{GIVEN['port']}")
        refused(f"CONNECT {address}", lambda: tunnel(f"{address}:{GIVEN['port']}"), "no rule allows", ["403"])
    refused("a name that leads to the node", lambda: by_name("node.wild.test", 443, hello("node.wild.test")), "node.wild.test leads to")
    refused("a name that leads to its loopback", lambda: by_name("loopback.wild.test", 443, hello("loopback.wild.test")), "loopback.wild.test leads to")


@case(14)
def _():
    for text in ("255.255.255.255", "224.0.0.1", "239.1.2.3", "224.0.0.251", "198.19.255.255"):
        refused(f"UDP {text}", lambda: send(text, 5353, broadcast=True))
    for text in ("255.255.255.255", "224.0.0.1"):
        refused(f"TCP {text}", lambda: dial(text, 80))
        refused(f"CONNECT {text}", lambda: tunnel(f"{text}:80"), "no rule allows", ["403"])
    for text in ("ff02::1", "ff02::fb"):
        refused(f"UDP {text}", lambda: send(text, 5353, socket.AF_INET6))
