package postgres

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// oldest is the PostgreSQL version that has all we use (idle_session_timeout).
const oldest = 14

// connectTimeout bounds one attempt to connect, unless the URL has
// connect_timeout.
const connectTimeout = 5 * time.Second

// target is where the state is, as parsed from a URL.
type target struct {
	config *pgxpool.Config
	schema string // empty: the role's own search path decides
	label  string // names the database in errors and logs, without user and password
}

// URLError reports a URL that can't be used. It never contains the password.
type URLError struct {
	Reason string
}

func (e *URLError) Error() string { return "PostgreSQL URL: " + e.Reason }

// parse removes the password from the URL before it is parsed: a parser's error
// quotes its input.
func parse(rawURL string) (target, error) {
	stripped, password, err := strip(rawURL)
	if err != nil {
		return target{}, err
	}
	config, err := pgxpool.ParseConfig(stripped)
	if err != nil {
		return target{}, &URLError{Reason: reason(err)}
	}
	conn := config.ConnConfig
	if password != "" {
		conn.Password = password
	}
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	if conn.ValidateConnect == nil {
		// A standby would serve the past as the present, and take no writes.
		conn.ValidateConnect = writable
	}
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "proxima"
	}
	conn.AfterConnect = prepareSession
	t := target{config: config, schema: conn.RuntimeParams["search_path"]}
	if strings.ContainsAny(t.schema, `",`) {
		return target{}, &URLError{Reason: "search_path must name one schema, without quotes"}
	}
	if t.schema != "" {
		conn.RuntimeParams["search_path"] = pgx.Identifier{t.schema}.Sanitize()
	}
	t.label = (&url.URL{Scheme: "postgres", Host: hostPort(conn.Host, conn.Port), Path: "/" + conn.Database}).String()
	return t, nil
}

// prepareSession keeps the planner to the indexes. Each of our statements has one
// that serves it at any size of the tables; but plans are kept, and a scan that
// was right for the first rows is wrong for a million. Compiling plans does not
// pay, and the price of a scan that is "off" would set it off.
func prepareSession(ctx context.Context, conn *pgconn.PgConn) error {
	return conn.Exec(ctx, `SET enable_seqscan = off; SET jit = off`).Close()
}

func writable(ctx context.Context, conn *pgconn.PgConn) error {
	if err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn); err != nil {
		return fmt.Errorf("a standby, or set to be read-only; name all servers in the URL, so that the one that takes writes is found: %w", err)
	}
	return nil
}

func hostPort(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return "" // a Unix socket; the server is this machine
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}

// reason is a parser's error without the URL.
func reason(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "`: "); ok {
		return after
	}
	return text
}

// strip takes the password out of a URL. What is ambiguous is refused rather
// than guessed at, as the guess might print a password.
func strip(rawURL string) (stripped, password string, err error) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok || (scheme != "postgres" && scheme != "postgresql") {
		return "", "", &URLError{Reason: "it must begin with postgres://"}
	}
	ambiguous := &URLError{Reason: "malformed; in user name and password the characters :/?#[]@% must be written as %3A and the like"}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Contains(path+query, "@") || strings.Contains(rawURL, "#") || strings.Count(authority, "@") > 1 {
		return "", "", ambiguous
	}
	hosts := authority
	var user string
	if login, after, ok := strings.Cut(authority, "@"); ok {
		var encoded string
		hosts = after
		user, encoded, _ = strings.Cut(login, ":")
		if password, err = url.PathUnescape(encoded); err != nil || strings.Contains(encoded, ":") {
			return "", "", ambiguous
		}
		user += "@"
	}
	values, err := url.ParseQuery(strings.ReplaceAll(query, "+", "%2B")) // a plus is a plus, as libpq has it
	if err != nil {
		return "", "", ambiguous
	}
	for key := range values {
		switch key {
		case "password":
			password = values.Get(key)
			values.Del(key)
		case "sslpassword":
			return "", "", &URLError{Reason: "sslpassword is not supported; use a key file without a password, readable by its owner only"}
		}
	}
	return scheme + "://" + user + hosts + "/" + path + "?" + strings.ReplaceAll(values.Encode(), "+", "%20"), password, nil
}

// dial opens a connection of its own, outside the pool.
func (t target) dial(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, t.config.ConnConfig.Copy())
}

// inspect checks the server, and logs what an operator should know about it.
func (t target) inspect(ctx context.Context, conn *pgx.Conn, logger *slog.Logger) error {
	var version int
	var fsync, pageWrites, checksums bool
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int,
		current_setting('fsync')::bool, current_setting('full_page_writes')::bool, current_setting('data_checksums') <> 'off'`).
		Scan(&version, &fsync, &pageWrites, &checksums); err != nil {
		return err
	}
	if version/10000 < oldest {
		return fmt.Errorf("the server is PostgreSQL %d, it must be %d or newer", version/10000, oldest)
	}
	if !fsync || !pageWrites {
		logger.Warn("the PostgreSQL server runs without fsync or full_page_writes: a power cut loses or corrupts acknowledged commits",
			"store", t.label)
	}
	if !checksums {
		logger.Warn("the PostgreSQL server keeps no checksums of its pages: damage on its disk is not noticed; "+
			"stop it once and run pg_checksums --enable", "store", t.label)
	}
	if _, encrypted := conn.PgConn().Conn().(*tls.Conn); !encrypted && !local(conn.PgConn().Conn().RemoteAddr()) {
		logger.Warn("the connection to PostgreSQL is not encrypted: everybody on the way reads and changes the state; "+
			"add sslmode=verify-full and sslrootcert=FILE to the URL", "store", t.label)
	}
	return nil
}

func local(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}
