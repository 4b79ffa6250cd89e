module github.com/ashfaqjani916/gotsem/cmd/gotsem

go 1.26.0

require (
	github.com/alecthomas/kong v1.17.0
	github.com/ashfaqjani916/gotsem v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/rogpeppe/go-internal v1.16.0
	golang.org/x/sys v0.50.0
	golang.org/x/term v0.48.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/multierr v1.10.0 // indirect
	go.uber.org/zap v1.28.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)
