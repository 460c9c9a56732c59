"""URLs that lead, or try to lead, to where no request may go; and what their names resolve to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

_HOSTS = [
    # IPv4, spelled as everybody does.
    "127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1", "100.127.255.255", "169.254.0.1", "169.254.169.254", "169.254.170.2",
    "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.8", "192.0.0.192", "192.0.2.1",
    "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16", "100.100.100.200",
    # IPv4, spelled as only some parsers understand it.
    "127.1", "127.0.1", "10.1", "0", "0x0", "00", "2130706433", "0x7f000001", "0x7F000001",
    "017700000001", "0177.0.0.1", "0x7f.0.0.1", "0x7f.1", "127.0.0.0x1", "0177.1",
    "127.000.000.001",
    "127.0.0.01", "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE", "0251.0376.0251.0376",
    "169.254.43518", "169.16689662", "3232235521", "0xc0a80001", "4294967295", "4294967296",
    "127.0.0.1.", "127.1.", "1.1.1.1.1", "256.256.256.256", "127.0.0.256", "1.2.3", "0x",
    "08.0.0.1",
    "127.0.0.1..", ".127.0.0.1",
    # IPv6.
    "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[fe80::1]", "[febf::1]", "[fec0::1]",
    "[fc00::1]", "[fd00::1]", "[fd00:ec2::254]", "[fd20:ce::254]", "[ff02::1]", "[ff0e::1]",
    "[100::1]", "[2001:db8::1]", "[3fff::1]", "[5f00::1]", "[4000::1]", "[e000::1]",
    "[2001:2::1]",
    "[2001:10::1]", "[2001:20::1]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%25lo]",
    "[::1%lo]",
    # IPv4 within IPv6.
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:7f00:0001]",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]", "[::ffff:10.0.0.1]", "[::ffff:0.0.0.0]", "[::127.0.0.1]",
    "[::7f00:1]",
    "[::10.0.0.1]", "[::ffff:0:127.0.0.1]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b::10.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::127.0.0.1]",
    "[64:ff9b:1:ffff::10.0.0.1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:a00:1::]",
    "[2002:c0a8:1::]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "[2001::7f00:1]",
    # Brackets and colons that hold no address.
    "[127.0.0.1]", "[]", "[::1", "::1", "[::1]]", "[::1]x", "[1:2]", "[localhost]", "[::g]",
    "[::ffff:127.0.0.1.]", "[0x7f.0.0.1]",
    # Names, as a resolver may answer them.
    "localhost", "LOCALHOST", "localhost.", "ip6-localhost", "localhost.localdomain",
    "127.0.0.1.nip.io", "10.0.0.1.nip.io", "metadata.google.internal", "metadata",
    "internal.example",
    "six.example", "mixed.example", "mapped.example", "nat64.example", "zone.example",
    "first-public.example", "kubernetes.default.svc", "instance-data", "router.example",
    # Letters and dots that become others.
    "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460", "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1",
    "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3", "localho\u017ft",
    "exa\u00admple.com", "\u0435xample.com", "example.com\u3002", "127.0.0.1\u200b",
    "\u2113ocalhost",
    # No names at all.
    "", ".", "..", "-", "a..b", "-a.example", "a-.example", "exa mple.com", "exa%6dple.com",
    "%31%32%37.0.0.1", "*.example.com", "a" * 64 + ".example", "a." * 127 + "example",
]  # fmt: skip

_WHOLE = [
    # Schemes.
    "file:///etc/passwd", "ftp://example.com/", "gopher://127.0.0.1:6379/_FLUSHALL",
    "dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "unix:///var/run/docker.sock",
    "data:text/plain,hi", "javascript:alert(1)", "jar:http://127.0.0.1!/", "ws://example.com/",
    "https:example.com", "https:/example.com", "https:///example.com", "//example.com/", "/x",
    "example.com", "http", "http:", "http://", "https://?", "https://#",
    "httpss://example.com/",
    # Who is the host?
    "https://example.com@127.0.0.1/", "https://127.0.0.1@example.com/",
    "https://a:b@example.com/",
    "https://@127.0.0.1/", "https://example.com:80@127.0.0.1/", "https://a@b@127.0.0.1/",
    "https://127.0.0.1#@example.com/", "https://127.0.0.1?@example.com/",
    "https://example.com\\@127.0.0.1/", "https://127.0.0.1\\@example.com/",
    "https:\\\\127.0.0.1/",
    "https://127.0.0.1%2f@example.com/", "https://example.com%40127.0.0.1/",
    "https://127.0.0.1:80\\@example.com:80/", "https://[::1]@example.com/",
    # Ports.
    "https://example.com:0/", "https://example.com:65536/", "https://example.com:-1/",
    "https://example.com:+443/", "https://example.com:4 43/", "https://example.com:0x50/",
    "https://example.com:/", "https://example.com:80:80/", "https://example.com:\u0663/",
    "https://example.com:22/", "https://example.com:25/", "https://example.com:53/",
    "https://example.com:111/", "https://example.com:389/", "https://example.com:445/",
    "https://example.com:1023/", "https://example.com:99999999999999999999/",
    # Characters that end a request, or begin another one.
    "https://example.com/\r\nHost: 127.0.0.1", "https://example.com/\n",
    "\nhttps://example.com/",
    " https://example.com/", "https://example.com/ HTTP/1.1", "https://example.com/\x00",
    "https://example.com\t/", "https://exa\nmple.com/", "https://example.com/\x7f",
    "https://example.com/\x85", "https://example.com/\u00fc", "https://example.com/%",
    "https://example.com/%zz",
    'https://example.com/"', "https://example.com/<x>", "https://example.com/`",
    "https://example.com/{x}",
    "https://example.com/#fragment", "https://example.com/" + "a" * 5000,
]  # fmt: skip

HOSTILE = [f"http://{host}/" for host in _HOSTS] + _WHOLE

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1"],
    "ip6-localhost": ["::1"],
    "localhost.localdomain": ["127.0.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "10.0.0.1.nip.io": ["10.0.0.1"],
    "metadata.google.internal": ["169.254.169.254"],
    "metadata": ["169.254.169.254"],
    "internal.example": ["10.1.2.3"],
    "six.example": ["fd00::7"],
    "mixed.example": ["93.184.216.34", "fd00::7"],
    "mapped.example": ["::ffff:10.0.0.1"],
    "nat64.example": ["64:ff9b::a00:1"],
    "zone.example": ["fe80::1%eth0"],
    "first-public.example": ["2606:2800:220:1::1", "93.184.216.34", "127.0.0.1"],
    "kubernetes.default.svc": ["10.96.0.1"],
    "instance-data": ["169.254.169.254"],
    "router.example": ["192.168.1.1"],
    "example.com": ["93.184.216.34", "2606:2800:220:1::1"],
}

PRIVATE = ["127.0.0.1", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1"]


def embeddings(inner: IPv4Address) -> list[IPv6Address]:
    """Every way to write an IPv4 address within an IPv6 one."""
    number = int(inner)
    prefixes = ["::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::"]
    low = [IPv6Address(int(IPv6Address(prefix)) | number) for prefix in prefixes]
    six_to_four = IPv6Address(0x2002 << 112 | number << 80 | 1)
    teredo = IPv6Address(0x20010000 << 96 | 0x4136E378 << 64 | (number ^ 0xFFFFFFFF))
    teredo_server = IPv6Address(0x20010000 << 96 | number << 64)
    return [*low, six_to_four, teredo, teredo_server]
