from fluxmq._hot.run cimport Run

cpdef list build_batches(Run run, bytes key, bytes properties, long long now_us, long long expiry_us=*, long long delay_us=*, unsigned int attributes=*)
cpdef bytes build_message(bytes key, bytes properties, bytes payload, long long now_us, long long expiry_us=*, long long delay_us=*, unsigned int attributes=*, unsigned long long producer=*, long long sequence=*)
