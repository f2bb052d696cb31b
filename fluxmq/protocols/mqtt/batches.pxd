from fluxmq.protocols.mqtt.run cimport PublishRun

cpdef list build_batches(PublishRun run, bytes key, bytes properties, long long now_us, long long expiry_us=*, long long delay_us=*, unsigned int attributes=*)
