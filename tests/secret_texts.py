"""Realistic texts with a secret each, and harmless texts that look a little like them."""

from __future__ import annotations

KEY_BODY = (
    "MIIEowIBAAKCAQEAvRTyuWzkPq0hQf8mMwZ7Tn3aKJ5c\n"
    "q2xYbVh9sLd0eRfGu1iOpAsDfGhJkLzXcVbNm4Q6W8E2R5\n"
    "T7Y9UiOPlKjHgFdSaZxCvBnM1q3w5e7r9t=="
)
GCP_KEY = KEY_BODY.replace("\n", "\\n")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


LEAKS = (
    # Variables
    "AWS_SECRET_ACCESS_KEY=«wJalrXUtnFEMIK7MDENGbPxRfiCYzzzKEY»",
    "export SECRET_KEY='«django-insecure-8#k2 h$1x»'",
    "DB_PASSWORD_PROD=«hunter2-prod»",
    "env: PGPASSWORD=«corr3ct-horse» psql -h db",
    "MYSQL_PWD=«tr0ub4dor&3x» mysqldump shop",
    "SLACKTOKEN: «qwErTy098765»",
    'STRIPE_API_KEY = "«live 9f8e7d6c»"',
    "REDIS_PASS=«q1w2e3r4t5»",
    "ACCOUNT_KEY=«Zm9vYmFyYmF6cXV4==»;Suffix=x",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=«k9Xz+7/abcDEF==»",
    "Server=db;User Id=sa;Pwd=«Sup3rS3cret!»;",
    "Endpoint=sb://x/;SharedAccessKey=«aGVsbG9Xb3JsZA»",
    "ENCRYPTION_KEY=«0a1b2c3d4e5f60718293»",
    "signing_key: «c2lnbmluZ2tleXZhbHVl»",
    "password=«with,comma;and&amp»",
    "GITHUB_TOKEN=«0123456789abcdef0123»",
    # Configuration
    '{"password": "«hunter2\\"quoted»"}',
    '{"user":"ada","api_key":"«9a8b7c6d5e4f»","n":1}',
    "{'client_secret': '«abc-123-def-456»'}",
    'payload was "{\\"password\\": \\"«hunter2 again»\\"}"',
    "password: «hunter2-yaml»\nuser: ada",
    "password:\n  «hunter2-folded»\n",
    "'password' => '«hunter2-ruby»',",
    "password => «hunter2-arrow»",
    "$config['db_password'] = '«hunter2-php»';",
    "conn.password := «hunter2-pascal»",
    "<password>«hunter2-xml»</password>",
    '<wsse:Password Type="text">«hunter2-soap»</wsse:Password>',
    "<clientSecret><![CDATA[«hunter2-cdata»]]></clientSecret>",
    '<add key="DbPassword" value="«hunter2-net»" />',
    '{"name": "DB_PASSWORD", "value": "«hunter2-ecs»"}',
    "Config(host='db', password='«hunter2-repr»', port=5432)",
    "Settings(token=b'«hunter2-bytes»')",
    "passphrase: «correct horse battery staple»",
    "tokens: {}, refresh_token: «1//0gAbCdEfGhIj»",
    "password = `«hunter2-backtick»`",
    '"access_tokens": ["«tok-one-111»", "x"]',
    # Command lines
    "curl -u ada:«hunter2-curl» https://api.example.com",
    "curl --user 'ada:«hunter2 spaced»' https://x",
    "curl -uada:«hunter2-glued» https://x",
    "curl --proxy-user=ada:«hunter2-pr0xied» https://x",
    "tool --password «hunter2-flag» --verbose",
    "tool --password=«hunter2-equals»",
    "tool --db-password '«hunter2 in quotes»' x",
    "helm --set-string auth.token=«abcd1234efgh»",
    "vault login -token=«s.AbCdEf123456»",
    "['backup', '--password', '«hunter2-list»']",
    '["curl", "-u", "ada:«hunter2-json»"]',
    "docker login --username ada --password «hunter2-c0ntainer»",
    "sshpass -p «hunter2-ssh» ssh ada@host",
    "mysql -h db -u root -p«hunter2-mysql» shop",
    "redis-cli -h cache -a «hunter2-redis» PING",
    "openssl rsa --passphrase «hunter2-k3yfile» -in k",
    "CREATE USER ada IDENTIFIED BY '«hunter2-sql»'",
    "ALTER ROLE ada PASSWORD '«hunter2-role»'",
    "ALTER USER ada WITH ENCRYPTED PASSWORD '«hunter2 two»'",
    # Headers
    "Authorization: Bearer «abcdef.123456-xyz»",
    "Authorization: Basic «YWRhOmh1bnRlcjI=»",
    "authorization: Token «99aabbccddee»",
    'Authorization: Digest username="ada", response="«6629fae49393a05397450978507c4ef1»"',
    "curl -H 'Authorization: Bearer «zzzYYY111222»' https://x",
    'curl -H "X-Api-Key: «k-112233445566»" https://x',
    'Cookie: theme="dark blue"; sid=«s3ss10nv4lue»',
    "Set-Cookie: sessionid=«kq8x7w6v5u»; HttpOnly",
    "Proxy-Authorization: Basic «cHJveHk6cHc5OTk=»",
    "X-Auth-Token: «7d6c5b4a39281706»",
    "illegal header line: bytearray(b'GET\\r\\nAuthorization: Token «0f1e2d3c4b»')",
    "[(b'host', b'x'), (b'authorization', b'Bearer «5a5b5c5d5e»')]",
    "headers={'Authorization': 'Bearer «77665544332211»'}",
    "sent bearer «A1b2C3d4E5f6» to the endpoint",
    "Authorization: AWS4-HMAC-SHA256 Signature=«fe5f80f77d5fa3beca038a248ff027d0»",
    # URLs
    "fatal: could not read https://«ghs0token0value»@git.example.com/x",
    "clone https://ada:«hunter2-url»@git.example.com/x.git failed",
    "postgresql://app:«p@ss:w0rd-pg»@db:5432/shop",
    "amqp://guest:«hunter2/slash»@mq:5672/",
    "redis://:«hunter2-nouser»@cache:6379/0",
    "mongodb+srv://ada:«m0ng0-pw»@cluster.example.net/?w=1",
    "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=«ab12cd34ef56ab78»",
    "https://b.s3.amazonaws.com/k?AWSAccessKeyId=AKIA1&Signature=«vjbyPxybdZaNmGa%2ByT»&Expires=9",
    "https://a.blob.core.windows.net/c?sv=2022&sig=«d3JvbmdzaWc%3D»&se=2030",
    "https://storage.googleapis.com/b/o?X-Goog-Signature=«9c8b7a6f5e4d3c2b»",
    "https://x/?X-Amz-Security-Token=«IQoJb3JpZ2luX2Vj»&b=2",
    "GET /hook?token=«hook-t0ken-1» HTTP/1.1",
    "https://maps.example.com/api?key=«Kz8yXw7vUt6sRq5pOn4m»&q=x",
    "https://x/callback?code=«4/0AfJohXkQwErTyUiOp»&state=1",
    "302 to /login?next=https%3A%2F%2Fx%3Ftoken%3D«nested-t0ken»",
    "wss://stream.example.com/?access_token=«ws-t0ken-99»",
    "https://hooks.example.com/x?apikey=«7766aabbcc»",
    # Forms
    f"-----BEGIN RSA PRIVATE KEY-----\n«{KEY_BODY}»\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n«{KEY_BODY}»",
    f"… left out …\n«{KEY_BODY}»\n-----END EC PRIVATE KEY-----\nbye",
    f'{{"key_data": "-----BEGIN PRIVATE KEY-----\\n«{GCP_KEY}»\\n-----END PRIVATE KEY-----\\n"}}',
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n«{KEY_BODY}»\n-----END PGP PRIVATE KEY BLOCK-----",
    f"got «{JWT}» from the issuer",
    "remote: ghp_«16C7e42F292c6912E7710c838347Ae178B4a»",
    "using glpat-«x7Yz9Ab3Cd5Ef1Gh2Jk»",
    "posted with xoxb-263594206564-«FGqddMF8t08v8N7Oq4i5»",
    "charge via sk_live_«4eC39HqLyjWDarjtT1zdp7dc»",
    "tried pk_0123456789ab_«Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7Xy7»",
    "signed with whsec_«MfKQ9r8GKYqrTwjUPD8I»",
    "model key sk-proj-«a8B7c6D5e4F3g2H1i0J9» refused",
    "hub hf_«AbCdEfGhIj0123456789Kl»",
    # Where errors quote them
    "requests.exceptions.HTTPError: 401 for url: https://x/v1?api_key=«abc123def456»",
    'OperationalError: connection to "postgres://app:«hunter2-op»@db/x" failed',
    "KeyError: 'no route'\n  token = '«hunter2-source»'\n",
    "smtplib.SMTPAuthenticationError: (535, b'password=«hunter2-smtp»')",
    "ValueError: bad credentials: «ada/hunter2-cred»",
)
"""In each, the secret stands between « and »."""

HARMLESS = (
    "run_01J8ZQ4V7R9K2M3N5P6Q7R8S9T ended after 1.25 s",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit e0688f1 on branch main, 3 files changed",
    "550e8400-e29b-41d4-a716-446655440000 is a duplicate",
    "sent 3 tokens to ada",
    "usage: prompt_tokens=812, max_tokens: 4096, tokens_used=77",
    "token_type=bearer expires_in=3600",
    "see https://host:8080/path?page=2&sort=name",
    "https://example.com/callback?state=7&email=ada@example.com",
    "ssh://git@git.example.com/x and postgresql://perdure_server@localhost:5432/db",
    "mail to ada@example.com: done",
    "docker run -u 1000:1000 -p 80:80 --name web image:latest",
    "sudo -u postgres psql -c 'SELECT 1'",
    "git push -u origin main",
    "Basic authentication is not supported by this endpoint",
    "bearer tokens are sent in a header",
    "SyntaxError: Unexpected token 'o', \"not json\" is not valid JSON",
    "first pass: 12 rows, second pass: 40 rows",
    "tests: 12 passed, 0 failed; bypass: no",
    "PWD=/home/ada/work OLDPWD=/tmp",
    "the secret API_TOKEN is not in this process's environment; set it there and start it anew",
    "headers.authorization: must be text",
    "fail: password: must be a string, not 7",
    "token: must not be empty",
    "export TOKEN=$CI_TOKEN PASSWORD=${DB_PASSWORD} SECRET=***",
    "login(user=%(user)s, password=%(password)s)",
    "password=None, token=null",
    "the passenger list, the secretary's notes, a compass and 3 cookies",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUQ\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYI\n-----END PUBLIC KEY-----",
    (
        'Traceback (most recent call last):\n  File "/app/secrets.py", line 12, in token_hex\n'
        "    raise ValueError(n)\nValueError: 7"
    ),
    (
        '  File "/srv/app/token.py", line 3, in read\n    return open(path).read()\n'
        "FileNotFoundError: [Errno 2] No such file or directory: '/run/orders.csv'"
    ),
    (
        'psycopg.errors.UniqueViolation: duplicate key value violates "orders_pkey"\n'
        "DETAIL:  Key (id)=(1234567890) already exists."
    ),
    "AWS_ACCESS_KEY_ID is not set",
    "idempotency key order-1234 was used before; key=order-1234",
    "https://example.com/items?key=order-1234&code=404",
    "took 00:01:12.345, 3.2 MB, 99.9 %",
    "Http503: https://api.example.com/v1/orders answered 503",
    "GET /v1/runs?limit=50&after=2026-11-18T09:00:00Z 200 in 12 ms",
    "retry 3/5 at 2026-11-18T09:22:25.123+00:00 (in 8 s)",
    "0x7f3a91c0 segfault at 00000000 ip 00007f3a",
    "key rotation: secret_version=3, password_length=24, token_count=5",
    "redactions: [redacted] stays, password=[redacted] too",
    "Überweisung für Müller: 12,50 €, fällig",
    "signature = inspect.signature(function)",
    "a-b-c --output file.txt -o x -v",
    "/etc/passwd: Permission denied",
    "open /run/secrets/db_password: no such file or directory",
)
"""None of them may change."""

HOSTILE = (
    *("x", "a-", "password=", 'token="', "token='\\", "a://", "a://a:", "bearer ", "cookie:"),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "token", "--token ", "<token>"),
    *("?token=", "-u a:", "mysql ", "identified by ", "eyJaaaaaaaa.", "secret,", "token[", "sk-a1"),
    *("password 'x", "api_key.", "authorization: digest ", "pass=", "signature=a", "http://a@"),
)
"""Pieces of which a text of megabytes must not cost more than its length."""
