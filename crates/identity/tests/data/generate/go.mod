module generate

go 1.24

require (
	github.com/golang-jwt/jwt/v5 v5.3.1
	go.etcd.io/etcd/server/v3 v3.7.3
	go.uber.org/zap v1.28.0
	golang.org/x/crypto v0.58.0
)
