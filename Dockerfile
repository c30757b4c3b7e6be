# The runner with Git, ssh, Bash, and CA certificates, but without an engine. Add the one you use on top, for example
#
#   FROM hawser
#   COPY --from=hashicorp/terraform:1.11 /bin/terraform /usr/local/bin/
#
# or mount a directory that contains it, and name the directory in Engine.AdditionalBinaryPaths.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin hawser

FROM debian:bookworm-slim
# tini is process 1: it forwards SIGTERM and reaps orphaned processes.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash ca-certificates git openssh-client tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --home-dir /var/lib/hawser --create-home --shell /usr/sbin/nologin hawser \
 && install --directory --mode=0700 --owner=hawser --group=hawser /var/lib/hawser/work /var/lib/hawser/temp
COPY --from=build /src/target/release/hawser /usr/local/bin/hawser
COPY LICENSE /usr/share/doc/hawser/LICENSE

# By number, so that Kubernetes can verify that it is not root.
USER 10001:10001
WORKDIR /var/lib/hawser
ENV HOME=/var/lib/hawser \
    WorkingDirectory__WorkingDirectory=/var/lib/hawser/work \
    WorkingDirectory__TempDirectory=/var/lib/hawser/temp
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/hawser"]
CMD ["run"]
