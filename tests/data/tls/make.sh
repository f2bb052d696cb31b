#!/bin/sh
# Makes the certificates beside this file: an authority, a server for localhost, a client. For tests only; the keys
# are public. Valid for a hundred years, so that this is run again only to change what they say.
set -eu
cd "$(dirname "$0")"
days=36500

openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -sha256 -days $days -subj "/CN=FluxMQ test authority" \
    -addext keyUsage=critical,keyCertSign,cRLSign -out ca.pem

issue() { # name, common name, extensions
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    # The identifiers and usages are what Python 3.13 insists on (X509_V_FLAG_X509_STRICT).
    printf '%s\n' "$3" basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \
        subjectKeyIdentifier=hash authorityKeyIdentifier=keyid > extensions.txt
    openssl req -new -key "$1.key" -subj "/CN=$2" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days $days -extfile extensions.txt -out "$1.pem"
}
issue server localhost "subjectAltName=DNS:localhost,IP:127.0.0.1
extendedKeyUsage=serverAuth"
issue client sensor-7 "subjectAltName=DNS:sensor-7.example.test,URI:urn:device:7
extendedKeyUsage=clientAuth"
rm -f ca.key ca.srl extensions.txt
