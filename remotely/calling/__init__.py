"""What every engine does for calls: owning what they carry, limits, queues, retries, next lives"""
