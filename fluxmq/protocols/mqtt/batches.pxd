from fluxmq.protocols.mqtt.run cimport Run

cpdef list build_batches(Run run, bytes key, bytes properties, long long now_us, long long expiry_us=*, long long delay_us=*, unsigned int attributes=*)
