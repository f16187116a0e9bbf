# The images for those who have Docker; `cargo xtask images` makes the same without it.
#
#     docker build --target operator --tag localhost/bulkhead/operator:dev .
#
# Targets: operator, router, cell-runtime, sample.

FROM rust:1.95-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools
WORKDIR /source
# The toolchain file, if there is one, decides which toolchain gets the target, so it is copied first.
COPY . .
RUN rustup target add "$(uname -m)-unknown-linux-musl"
RUN cargo build --locked --release --target "$(uname -m)-unknown-linux-musl" \
      --package bulkhead-operator --package bulkhead-router \
      --package bulkhead-cell-runtime --package bulkhead-samples
# What every image holds beside its program: users, and a folder for temporary files.
RUN mkdir -p /image/etc /programs \
 && install -d -m 1777 /image/tmp \
 && printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' > /image/etc/passwd \
 && printf 'root:x:0:\nnonroot:x:65532:\n' > /image/etc/group \
 && for program in operator router cell-runtime samples; do \
      cp "target/$(uname -m)-unknown-linux-musl/release/bulkhead-$program" /programs/; \
    done

FROM scratch AS base
COPY --from=build /image/ /
USER 65532:65532

FROM base AS operator
COPY --from=build /programs/bulkhead-operator /bulkhead-operator
ENTRYPOINT ["/bulkhead-operator"]

FROM base AS router
COPY --from=build /programs/bulkhead-router /bulkhead-router
ENTRYPOINT ["/bulkhead-router"]

FROM base AS cell-runtime
COPY --from=build /programs/bulkhead-cell-runtime /bulkhead-cell-runtime
ENTRYPOINT ["/bulkhead-cell-runtime"]

FROM base AS sample
COPY --from=build /programs/bulkhead-samples /bulkhead-samples
ENTRYPOINT ["/bulkhead-samples"]
