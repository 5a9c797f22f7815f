package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/march-id/march/allocator"
)

// ReadPostgres reads rows from the system's own table, or the one that is named, in the
// PostgreSQL of a DSN. It reads in one statement, so all rows are of one moment. Its error is
// Invalid for a DSN that is none and a system without a table, and else postgresError's.
func ReadPostgres(ctx context.Context, dsn, table string, s *System) (rows []Row, bad []*Bad, err error) {
	if table == "" {
		table = s.Table
	}
	if table == "" {
		return nil, nil, allocator.Errorf(allocator.Invalid,
			"system: %q has no table that PostgreSQL could have; allowed with a DSN: leaf, tinyid, cosid", s.Name)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, allocator.Errorf(allocator.Invalid, "source: %w", err) // pgx leaves the password out
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, nil, postgresError(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	columns := make([]string, len(s.columns))
	for i, c := range s.columns {
		columns[i] = pgx.Identifier{c.names[0]}.Sanitize() + "::text"
	}
	from := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	answer, err := conn.Query(ctx, "SELECT "+strings.Join(columns, ", ")+" FROM "+from)
	if err != nil {
		return nil, nil, postgresError(err)
	}
	defer answer.Close()
	fields := make([]*string, len(columns))
	into := make([]any, len(columns))
	for i := range fields {
		into[i] = &fields[i]
	}
	for n := 1; answer.Next(); n++ {
		if n > maxRows {
			return nil, nil, allocator.Errorf(allocator.Invalid,
				"%s: more than %d rows; allowed: up to so many in one import", table, maxRows)
		}
		if err := answer.Scan(into...); err != nil {
			return nil, nil, postgresError(err)
		}
		place := fmt.Sprintf("%s/%s, row %d", config.Database, table, n)
		if fields[0] != nil {
			place += " (" + shorten(*fields[0]) + ")"
		}
		row, wrong := s.row(place, fields)
		if wrong != nil {
			bad = append(bad, wrong)
			continue
		}
		rows = append(rows, row)
	}
	if err := answer.Err(); err != nil {
		return nil, nil, postgresError(err)
	}
	return rows, bad, nil
}

// postgresError gives an error of PostgreSQL its Kind: NotFound for a missing table, Invalid
// for a missing column, Denied and Unauthenticated for missing rights, Refused for what else
// the server refuses, Unavailable where it does not answer.
func postgresError(err error) error {
	kind := allocator.Unavailable
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		switch {
		case answer.Code == "42P01", answer.Code == "3D000": // undefined table, database
			kind = allocator.NotFound
		case answer.Code == "42703": // undefined column
			kind = allocator.Invalid
		case answer.Code == "42501":
			kind = allocator.Denied
		case strings.HasPrefix(answer.Code, "28"):
			kind = allocator.Unauthenticated
		default:
			kind = allocator.Refused
		}
	}
	return allocator.Errorf(kind, "PostgreSQL: %w", err)
}
