// Writes the test data of mainstay-identity: keys, tokens and password hashes as Go's libraries make them, and what these
// libraries say of forged ones. Keys are for these tests only. It is run by hand (go run . ..), since what it draws differs
// each time; the tests need no Go.
package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.etcd.io/etcd/server/v3/auth"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
)

// The time at which tokens are judged.
const now = 1_800_000_000

var folder = os.Args[1]

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func write(name string, bytes []byte) {
	if err := os.WriteFile(filepath.Join(folder, name), bytes, 0o644); err != nil {
		panic(err)
	}
}

func writePEM(name, label string, bytes []byte) []byte {
	block := pem.EncodeToMemory(&pem.Block{Type: label, Bytes: bytes})
	write(name, block)
	return block
}

func writeJSON(name string, value any) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	write(name, out.Bytes())
}

func certificate(key crypto.Signer) []byte {
	template := x509.Certificate{
		SerialNumber: big.NewInt(7),
		Subject:      pkix.Name{CommonName: "for tests only"},
		NotBefore:    time.Unix(now, 0),
		NotAfter:     time.Unix(now+1, 0),
	}
	return must(x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key))
}

func spki(key crypto.Signer) []byte { return must(x509.MarshalPKIXPublicKey(key.Public())) }

func pkcs8(key crypto.Signer) []byte { return must(x509.MarshalPKCS8PrivateKey(key)) }

type verdict struct {
	Name     string `json:"name"`
	Method   string `json:"method"`
	Token    string `json:"token"`
	Username string `json:"username"`
	Revision uint64 `json:"revision"`
	Error    string `json:"error"`
}

// As etcd's provider judges a token, but at a fixed time.
func judge(name string, method jwt.SigningMethod, key any, token string) verdict {
	out := verdict{Name: name, Method: method.Alg(), Token: token}
	parsed, err := jwt.Parse(token, func(token *jwt.Token) (any, error) {
		if token.Method.Alg() != method.Alg() {
			return nil, errors.New("invalid signing method")
		}
		return key, nil
	}, jwt.WithTimeFunc(func() time.Time { return time.Unix(now, 0) }))
	if err != nil {
		out.Error = err.Error()
		return out
	}
	claims := parsed.Claims.(jwt.MapClaims)
	username, ok := claims["username"].(string)
	if !ok {
		out.Error = "failed to obtain user claims from jwt token"
		return out
	}
	revision, ok := claims["revision"].(float64)
	if !ok {
		out.Error = "failed to obtain revision claims from jwt token"
		return out
	}
	out.Username, out.Revision = username, uint64(revision)
	return out
}

func signed(method jwt.SigningMethod, key any, header, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(header)) + "." + encode([]byte(claims))
	return text + "." + encode(must(method.Sign(text, key)))
}

func main() {
	// Keys.
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	rsaOther := must(rsa.GenerateKey(rand.Reader, 2048))
	rsaSmall := must(rsa.GenerateKey(rand.Reader, 1024))
	p256 := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p256Other := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	secret := []byte("a secret of tests, which is long enough for HMAC")
	write("hmac.secret", secret)
	writePEM("rsa.pkcs1.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey))
	writePEM("rsa.pkcs8.pem", "PRIVATE KEY", pkcs8(rsaKey))
	rsaSPKI := writePEM("rsa.spki.pem", "PUBLIC KEY", spki(rsaKey))
	writePEM("rsa.pkcs1.pub.pem", "RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey))
	writePEM("rsa.cert.pem", "CERTIFICATE", certificate(rsaKey))
	writePEM("rsa-other.pkcs8.pem", "PRIVATE KEY", pkcs8(rsaOther))
	rsaOtherSPKI := writePEM("rsa-other.spki.pem", "PUBLIC KEY", spki(rsaOther))
	write("rsa-both.spki.pem", append(append([]byte{}, rsaOtherSPKI...), rsaSPKI...))
	writePEM("rsa-small.pkcs1.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaSmall))
	writePEM("rsa-small.spki.pem", "PUBLIC KEY", spki(rsaSmall))
	for name, key := range map[string]*ecdsa.PrivateKey{"p256": p256, "p256-other": p256Other, "p384": p384} {
		writePEM(name+".sec1.pem", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key)))
		writePEM(name+".pkcs8.pem", "PRIVATE KEY", pkcs8(key))
		writePEM(name+".spki.pem", "PUBLIC KEY", spki(key))
		writePEM(name+".cert.pem", "CERTIFICATE", certificate(key))
	}
	writePEM("ed25519.pkcs8.pem", "PRIVATE KEY", pkcs8(ed))
	writePEM("ed25519.spki.pem", "PUBLIC KEY", spki(ed))

	type signer struct {
		method    jwt.SigningMethod
		sign, see any
	}
	rs := func(method jwt.SigningMethod) signer { return signer{method, rsaKey, &rsaKey.PublicKey} }
	hs := func(method jwt.SigningMethod) signer { return signer{method, secret, secret} }
	signers := []signer{
		rs(jwt.SigningMethodRS256), rs(jwt.SigningMethodRS384), rs(jwt.SigningMethodRS512),
		rs(jwt.SigningMethodPS256), rs(jwt.SigningMethodPS384), rs(jwt.SigningMethodPS512),
		{jwt.SigningMethodES256, p256, &p256.PublicKey}, {jwt.SigningMethodES384, p384, &p384.PublicKey},
		{jwt.SigningMethodEdDSA, ed, ed.Public()},
		hs(jwt.SigningMethodHS256), hs(jwt.SigningMethodHS384), hs(jwt.SigningMethodHS512),
	}
	var verdicts []verdict
	good := func(method string) (string, string) {
		return `{"alg":"` + method + `","typ":"JWT"}`, `{"exp":1800000300,"revision":7,"username":"alice"}`
	}
	for _, s := range signers {
		token := jwt.NewWithClaims(s.method, jwt.MapClaims{"username": "alice", "revision": 7, "exp": now + 300})
		text := must(token.SignedString(s.sign))
		verdicts = append(verdicts, judge("good", s.method, s.see, text))
		dot := strings.LastIndex(text, ".")
		// The first letter of the signature: all of its bits count.
		other := byte('A')
		if text[dot+1] == other {
			other = 'B'
		}
		flipped := text[:dot+1] + string(other) + text[dot+2:]
		verdicts = append(verdicts,
			judge("flipped signature", s.method, s.see, flipped),
			judge("no signature", s.method, s.see, text[:dot+1]),
			judge("cut signature", s.method, s.see, text[:len(text)-4]),
			judge("longer signature", s.method, s.see, text+"AAAA"),
		)
		header, claims := good("none")
		encode := base64.RawURLEncoding.EncodeToString
		none := encode([]byte(header)) + "." + encode([]byte(claims)) + "."
		verdicts = append(verdicts, judge("alg none", s.method, s.see, none))
		for _, file := range [][]byte{rsaSPKI, spki(rsaKey), x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)} {
			header, claims := good("HS256")
			forged := signed(jwt.SigningMethodHS256, file, header, claims)
			verdicts = append(verdicts, judge("HS256 with the public key as secret", s.method, s.see, forged))
		}
	}
	header, claims := good("RS256")
	verdicts = append(verdicts, judge("other key", jwt.SigningMethodRS256, &rsaKey.PublicKey,
		signed(jwt.SigningMethodRS256, rsaOther, header, claims)))
	header, claims = good("ES256")
	verdicts = append(verdicts, judge("other key", jwt.SigningMethodES256, &p256.PublicKey,
		signed(jwt.SigningMethodES256, p256Other, header, claims)))
	zeros := base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	text := signed(jwt.SigningMethodES256, p256, header, claims)
	verdicts = append(verdicts, judge("r and s are zero", jwt.SigningMethodES256, &p256.PublicKey,
		text[:strings.LastIndex(text, ".")+1]+zeros))

	// Everything below is signed by the right key.
	hs256 := func(name, header, claims string) {
		token := signed(jwt.SigningMethodHS256, secret, header, claims)
		verdicts = append(verdicts, judge(name, jwt.SigningMethodHS256, secret, token))
	}
	header, claims = good("HS256")
	for _, times := range []string{
		`1800000000`, `1800000001`, `1799999999`, `1800000000.9`, `1800000001.5`, `0`, `-0`, `-1`, `-1.5`, `1e3`,
		`9e18`, `1e19`, `1e300`, `-1e300`, `"1800000300"`, `null`, `true`, `[]`, `{}`, `1e400`, `18000003000000000000000`,
	} {
		hs256("exp "+times, header, `{"exp":`+times+`,"revision":7,"username":"alice"}`)
		hs256("nbf "+times, header, `{"nbf":`+times+`,"revision":7,"username":"alice"}`)
		hs256("iat "+times, header, `{"iat":`+times+`,"revision":7,"username":"alice"}`)
	}
	hs256("exp and nbf", header, `{"exp":1,"nbf":1800000300,"revision":7,"username":"alice"}`)
	hs256("exp and nbf of wrong types", header, `{"exp":"x","nbf":"y","revision":7,"username":"alice"}`)
	hs256("no exp", header, `{"revision":7,"username":"alice"}`)
	for _, revision := range []string{`0`, `7.9`, `"7"`, `null`, `9007199254740993`, `[7]`, `1e10`} {
		hs256("revision "+revision, header, `{"exp":1800000300,"revision":`+revision+`,"username":"alice"}`)
	}
	for _, username := range []string{`""`, `"ünï ✓ 𝄞"`, `"\u00fc\ud834\udd1e"`, `7`, `null`, `["alice"]`, `"a\u0000b"`} {
		hs256("username "+username, header, `{"exp":1800000300,"revision":7,"username":`+username+`}`)
	}
	hs256("no username", header, `{"exp":1800000300,"revision":7}`)
	hs256("no revision", header, `{"exp":1800000300,"username":"alice"}`)
	hs256("no claims", header, `{}`)
	hs256("duplicate username", header, `{"exp":1800000300,"revision":7,"username":"alice","username":"bob"}`)
	hs256("duplicate exp", header, `{"exp":1,"exp":1800000300,"revision":7,"username":"alice"}`)
	hs256("other case", header, `{"Exp":1,"Revision":7,"Username":"alice"}`)
	hs256("more claims", header, `{"aud":7,"iss":[],"sub":{},"exp":1800000300,"revision":7,"username":"alice"}`)
	for _, claims := range []string{``, `null`, `[]`, `7`, `"x"`, `{`, `{"a":}`, `{} x`, "\xff"} {
		hs256("claims "+claims, header, claims)
	}
	hs256("space around claims", header, " \n{\"exp\":1800000300,\"revision\":7,\"username\":\"alice\"} ")
	for _, header := range []string{
		``, `null`, `[]`, `{}`, `{"alg":7}`, `{"alg":null}`, `{"alg":""}`, `{"alg":"hs256"}`, `{"alg":"HS384"}`,
		`{"alg":"ES512"}`, `{"alg":"none"}`, `{"alg":"none","alg":"HS256"}`, `{"alg":"HS256","alg":"none"}`,
		`{"alg":"HS256"}`, `{"Alg":"HS256"}`, `{"alg":"HS256","crit":["exp"]}`, `{"alg":"HS256","kid":"../../dev/null"}`,
		`{"alg":"HS256","jwk":{"kty":"oct","k":""}}`, `{"alg":"HS256","zip":"DEF"}`,
	} {
		hs256("header "+header, header, claims)
	}
	whole := signed(jwt.SigningMethodHS256, secret, header, claims)
	for _, text := range []string{
		"", ".", "..", "...", "a.b", whole + ".", "." + whole, whole + "=", whole + " ", " " + whole, "Bearer " + whole,
		strings.Replace(whole, ".", "=.", 1), strings.ReplaceAll(whole, ".", ".."), "!." + whole, "é.é.é",
	} {
		verdicts = append(verdicts, judge("shape", jwt.SigningMethodHS256, secret, text))
	}
	for i := range verdicts {
		if !json.Valid([]byte(`"` + verdicts[i].Token + `"`)) {
			panic(verdicts[i].Token)
		}
	}
	writeJSON("tokens.json", verdicts)

	// Passwords.
	type comparison struct {
		Hash     string `json:"hash"`
		Password []byte `json:"password"`
		Error    string `json:"error"`
	}
	var comparisons []comparison
	compare := func(hash string, password []byte) {
		out := comparison{Hash: hash, Password: password}
		if err := bcrypt.CompareHashAndPassword([]byte(hash), password); err != nil {
			out.Error = err.Error()
		}
		comparisons = append(comparisons, out)
	}
	long := bytes.Repeat([]byte("0123456789"), 10)
	for cost, password := range [][]byte{
		{}, []byte("a"), []byte("pässwörd"), []byte("with\x00zero"), {0}, {0, 0}, long[:71], long[:72], {0xff, 0xfe, 0x80},
	} {
		hash := string(must(bcrypt.GenerateFromPassword(password, 4+cost%3)))
		compare(hash, password)
		compare(hash, append(append([]byte{}, password...), 0))
		compare(hash, append(append([]byte{}, password...), 'x'))
		compare("$2b"+hash[3:], password)
		compare("$2y"+hash[3:], password)
		compare("$2$"+hash[4:], password)
		compare("$1a"+hash[3:], password)
		compare("$3a"+hash[3:], password)
		compare("x2a"+hash[3:], password)
		compare(hash[:4]+"+4"+hash[6:], password)
		compare(hash[:4]+"-4"+hash[6:], password)
		compare(hash[:4]+"03"+hash[6:], password)
		compare(hash[:4]+"32"+hash[6:], password)
		compare(hash[:59], password)
		compare(hash[:58], password)
		compare(hash+"more", password)
		compare("", password)
	}
	fine := string(must(bcrypt.GenerateFromPassword(long[:72], 4)))
	compare(fine, long)
	compare(fine, long[:73])
	compare(fine, bytes.Repeat(long[:72], 2))
	writeJSON("passwords.json", comparisons)

	// Options, as etcd itself reads them.
	type option struct {
		Text  string `json:"text"`
		Error string `json:"error"`
	}
	var options []option
	read := func(text string) {
		_, err := auth.NewTokenProvider(zap.NewNop(), strings.ReplaceAll(text, "@", folder+"/"), nil, 0)
		out := option{Text: text}
		if err != nil {
			out.Error = strings.ReplaceAll(err.Error(), folder+"/", "@")
		}
		options = append(options, out)
	}
	for _, text := range []string{
		"", "simple", "simple,", "simple,a", "simple,a=b", "simple,a=b,a=c", "Simple", "jwt", "jwt,", "jwt,=", "nop", ",",
		"jwt,sign-method=HS256", "jwt,sign-method=HS256,priv-key=@hmac.secret",
		"jwt,sign-method=HS256,pub-key=@hmac.secret", "jwt,sign-method=HS256,priv-key=@hmac.secret,pub-key=@nowhere",
		"jwt,sign-method=hs256,priv-key=@hmac.secret", "jwt,sign-method=,priv-key=@hmac.secret",
		"jwt,sign-method=none", "jwt,sign-method=RS256", "jwt,sign-method=RS256,priv-key=@nowhere",
		"jwt,sign-method=RS256,sign-method=RS256,priv-key=@rsa.pkcs1.pem", "jwt,sign-method=RS256=RS256",
		"jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=5m", "jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=5",
		"jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=", "jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=-5m",
		"jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=0", "jwt,sign-method=HS256,priv-key=@hmac.secret,ttl=1h30m0.5s",
		"jwt,sign-method=HS256,priv-key=@hmac.secret,more=x", "jwt,sign-method=HS256,priv-key=",
	} {
		read(text)
	}
	private := []string{"", "rsa.pkcs1.pem", "rsa.pkcs8.pem", "rsa-other.pkcs8.pem", "p256.sec1.pem", "p256.pkcs8.pem",
		"p384.sec1.pem", "p384.pkcs8.pem", "ed25519.pkcs8.pem", "hmac.secret"}
	public := []string{"", "rsa.spki.pem", "rsa.pkcs1.pub.pem", "rsa.cert.pem", "rsa-other.spki.pem", "p256.spki.pem",
		"p256.cert.pem", "p256-other.spki.pem", "p384.spki.pem", "ed25519.spki.pem", "hmac.secret"}
	for _, method := range []string{"RS256", "PS512", "ES256", "ES384", "EdDSA"} {
		for _, priv := range private {
			for _, pub := range public {
				text := "jwt,sign-method=" + method
				if priv != "" {
					text += ",priv-key=@" + priv
				}
				if pub != "" {
					text += ",pub-key=@" + pub
				}
				read(text)
			}
		}
	}
	writeJSON("options.json", options)
	fmt.Println(len(verdicts), "tokens,", len(comparisons), "passwords,", len(options), "options")
}
